//! A replay in words: its classes, examples of them, and what it came to.

use std::io::Write;

use super::super::list::at;
use super::super::table;
use crate::store::replay::{Class, Report, Sample};

pub(super) fn tell_classes(report: &Report, out: &mut impl Write) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> = report
        .classes
        .iter()
        .map(|class| {
            let what = if class.class == "not_possible" || (class.class == "risky" && !report.replay.risky_included) {
                "left out"
            } else {
                "sent again"
            };
            vec![class.class.clone(), class.rows.to_string(), what.to_owned(), meaning(class).to_owned()]
        })
        .collect();
    table::write(out, &["class", "notifications", "", "because"], &rows)
}

fn meaning(class: &Class) -> &'static str {
    match (class.class.as_str(), class.why.as_deref()) {
        ("safe", _) => "known not to have been accepted",
        ("within_window", _) => "may have been accepted; the provider still deduplicates it",
        ("risky", _) => "may have been accepted; nobody deduplicates it",
        (_, Some("expired")) => "its own expiry has passed",
        (_, Some("erased")) => "its content was erased",
        _ => "not as things stand",
    }
}

pub(super) fn tell_samples(samples: &[Sample], out: &mut impl Write) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> = samples
        .iter()
        .map(|sample| {
            vec![
                sample.class.clone(),
                sample.notification_id.to_string(),
                sample.state.clone(),
                sample.account_id.clone(),
                sample.recipient.clone(),
                sample.provider.clone().unwrap_or_default(),
                sample.last_answer.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table::write(out, &["for example", "id", "state", "account", "recipient", "provider", "last answer"], &rows)
}

pub(super) fn tell(report: &Report, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, report)?;
        writeln!(out)?;
        return Ok(());
    }
    let replay = &report.replay;
    writeln!(out, "replay {}", replay.id)?;
    writeln!(out, "  state      {}", replay.state)?;
    writeln!(out, "  planned    {} by {}: {}", at(replay.created_at), replay.created_by, replay.reason)?;
    if let (Some(started), Some(rate)) = (replay.started_at, replay.rate_per_second) {
        writeln!(out, "  started    {}, {rate}/s", at(started))?;
    }
    if let Some(ended) = replay.ended_at {
        writeln!(out, "  ended      {}", at(ended))?;
    }
    writeln!(out)?;
    tell_classes(report, out)?;
    let counted = |counts: &std::collections::BTreeMap<String, i64>, head: &str, out: &mut dyn Write| {
        let words: Vec<_> = counts.iter().map(|(name, rows)| format!("{rows} {name}")).collect();
        if words.is_empty() { Ok(()) } else { writeln!(out, "{head:22} {}", words.join(", ")) }
    };
    writeln!(out)?;
    counted(&report.items, "of the plan", out)?;
    counted(&report.states, "the replayed are now", out)?;
    counted(&report.attempts, "attempts made for it", out)?;
    Ok(())
}
