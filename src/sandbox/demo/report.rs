//! The demo's last page: the states, the faults, the proof, and what a person is asked to look at.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use super::proof::Equation;
use super::screen::{Ink, Screen, grouped};
use super::stage::Stage;
use super::truth::{Facts, Row};
use super::weather;
use crate::domain::state::State;

/// How many offenders of one equation are told, and stories shown: the first ones tell the fault.
const OFFENDERS_SHOWN: usize = 5;

/// How many of what is in doubt are told one by one.
const DOUBTS_SHOWN: usize = 5;

/// What a state says.
const fn meaning(state: State) -> &'static str {
    match state {
        State::Pending => "waiting to be sent",
        State::Claimed => "held by a worker; nothing has left",
        State::Transmitting => "begun: the body may be leaving",
        State::Sent => "a provider took responsibility",
        State::Bounced => "taken, and came back",
        State::Uncertain => "may have been accepted; evidence is awaited",
        State::Unresolved => "may have been accepted; a person decides",
        State::Failed => "known not to have been accepted, and given up",
        State::Cancelled => "withdrawn",
    }
}

/// The table of states by route.
pub(super) fn states(screen: &mut Screen<'_>, facts: &Facts) -> Result<()> {
    screen.heading("States, by route")?;
    screen.line(format_args!("  {:<14}{:>9}{:>9}   what it means", "", "default", "bulk"))?;
    for state in State::ALL {
        let count = |route: &str| facts.ids(|row| row.state == Some(state) && row.route == route).len();
        let (default, bulk) = (count("default"), count("bulk"));
        if default + bulk > 0 {
            let reasons = if state == State::Failed { reasons(facts) } else { String::new() };
            screen.line(format_args!(
                "  {:<14}{:>9}{:>9}   {}{reasons}",
                state.as_str(),
                grouped(default),
                grouped(bulk),
                meaning(state)
            ))?;
        }
    }
    let attempts = grouped(facts.attempts);
    screen.line(format_args!("  {attempts} attempts were made; default goes to dedup, bulk to plain"))?;
    if let Some((backlog, others)) = facts.waits {
        screen.line(format_args!(
            "  on the route bulk the newsletter's backlog waited {backlog:.1} s for a first attempt, the other accounts {others:.1} s \
             (medians)"
        ))?;
    }
    Ok(())
}

/// Why notifications failed.
fn reasons(facts: &Facts) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in facts.rows.values() {
        if let Some(reason) = &row.reason {
            *counts.entry(reason).or_default() += 1;
        }
    }
    let counts: Vec<_> = counts.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    format!(" ({})", counts.join(", "))
}

/// The faults that struck.
pub(super) fn faults(screen: &mut Screen<'_>, stage: &Stage, facts: &Facts) -> Result<()> {
    let mut by_kind: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (place, server) in [&stage.dedup, &stage.plain].into_iter().enumerate() {
        for (label, count) in weather::struck(&server.script()) {
            by_kind.entry(label).or_default()[place] += count;
        }
    }
    let total: u64 = by_kind.values().flatten().sum();
    screen.heading(&format!("Faults that struck: {total} by the servers"))?;
    screen.line(format_args!("  {:<34}{:>7}{:>9}", "", "dedup", "plain"))?;
    for (label, [dedup, plain]) in by_kind {
        screen.line(format_args!("  {label:<34}{dedup:>7}{plain:>9}"))?;
    }
    let mut shop = String::new();
    for (what, count) in &facts.ledger.troubles {
        let separator = if shop.is_empty() { "" } else { ", " };
        write!(shop, "{separator}{what} {count}")?;
    }
    screen.line(format_args!("  in the shop: {shop}"))?;
    screen.line("  and: a worker killed, a worker paused past its lease, PostgreSQL killed, a provider down")?;
    Ok(())
}

/// The equations.
pub(super) fn proof(screen: &mut Screen<'_>, equations: &[Equation]) -> Result<()> {
    screen.heading("Proof, from both sides")?;
    for equation in equations {
        let mark = if equation.holds() { screen.ink(Ink::Good, "  ok  ") } else { screen.ink(Ink::Bad, " FAIL ") };
        screen.line(format_args!("{mark} {:<13} {}", equation.name, equation.says))?;
    }
    Ok(())
}

/// The stories of what should not be.
pub(super) async fn offenders(screen: &mut Screen<'_>, stage: &Stage, equations: &[Equation]) -> Result<()> {
    for equation in equations.iter().filter(|equation| !equation.holds()) {
        screen.heading(&format!("{}: {} offend", equation.name, grouped(equation.offenders.len())))?;
        for id in equation.offenders.iter().take(OFFENDERS_SHOWN) {
            let story = stage.show(id).await.unwrap_or_else(|error| format!("{id}: {error:#}"));
            screen.line(story)?;
        }
    }
    Ok(())
}

/// What is in doubt, and what to do about it.
pub(super) async fn doubts(screen: &mut Screen<'_>, stage: &Stage, facts: &Facts) -> Result<()> {
    let flagged = facts.ids(Row::flagged);
    let accepted = facts.accepted();
    screen.heading(&format!("In doubt and flagged: {}", grouped(flagged.len())))?;
    let mut known: BTreeMap<(&str, &str), [usize; 2]> = BTreeMap::new();
    for (id, row) in facts.rows.iter().filter(|(id, _)| flagged.contains(*id)) {
        let counts = known.entry((&row.route, row.doubt.as_deref().unwrap_or("?"))).or_default();
        counts[usize::from(!accepted.contains(id))] += 1;
    }
    if flagged.is_empty() {
        return Ok(());
    }
    screen.line(format_args!(
        "  {:<9}{:<66}{:>10}{:>10}",
        "route", "what is known of the first doubtful attempt", "accepted", "not"
    ))?;
    for ((route, doubt), [accepted, not]) in known {
        screen.line(format_args!("  {route:<9}{doubt:<66}{accepted:>10}{not:>10}"))?;
    }
    screen.line("  The last two columns only the servers know: from the outside both look the same. That is why they are flagged.")?;
    let mut shown: BTreeMap<(Option<State>, Option<&str>), &String> = BTreeMap::new();
    for (id, row) in facts.rows.iter().filter(|(id, _)| flagged.contains(*id)) {
        shown.entry((row.state, row.doubt.as_deref())).or_insert(id);
    }
    screen.line("  A few of them, and the next safe action:")?;
    for ((state, doubt), id) in shown.into_iter().take(DOUBTS_SHOWN) {
        let (state, doubt) = (state.map_or("?", State::as_str), doubt.unwrap_or("?"));
        let action = match state {
            "unresolved" => "look its Message-ID up at the provider: there, it is sent; not there, send it again",
            _ => "wait for evidence until its window is over; nothing is resent meanwhile",
        };
        screen.line(format_args!("  {id}  {state}; {doubt}\n    {action}"))?;
    }
    if let Some(id) = flagged.first() {
        screen.line(screen.ink(Ink::Notice, format_args!("\n  $ outboxd show {id}")))?;
        for line in stage.show(id).await?.lines() {
            screen.line(format_args!("  {line}"))?;
        }
    }
    Ok(())
}

/// One line for machines and tables.
pub(super) fn summary(seed: u64, facts: &Facts, equations: &[Equation], seconds: f64) -> String {
    let offenders =
        |name| equations.iter().filter(|one| one.name == name).map(|one| one.offenders.len()).sum::<usize>();
    let flagged = facts.ids(Row::flagged);
    let accepted = facts.accepted();
    format!(
        "summary: seed={seed} messages={} notifications={} sent={} failed={} flagged={} false={} duplicates={} lost={} stuck={} \
         seconds={seconds:.1}",
        facts.messages.len(),
        facts.rows.len(),
        facts.in_state(State::Sent).len(),
        facts.in_state(State::Failed).len(),
        flagged.len(),
        flagged.difference(&accepted).count(),
        offenders("duplicates"),
        offenders("lost"),
        offenders("stuck"),
    )
}
