//! `outboxd config check`: what the configuration comes to, or everything that is wrong with it. Touches no network.

use std::io::Write;
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde_json::json;

use super::Exit;
use crate::config::{Invalid, Loaded};
use crate::domain::policy::OnUncertain;
use crate::mail::provider::ProviderSettings;

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Answer in JSON, on standard output in any case
    #[arg(long)]
    json: bool,
}

/// Prints what `loaded` is, and ends with [`Exit::Usage`] if it is not usable.
///
/// # Errors
/// When the answer cannot be written; and, unless JSON was asked for, with the problems of the configuration.
pub fn run(args: &Args, loaded: Result<Loaded, Invalid>, out: &mut impl Write) -> anyhow::Result<Exit> {
    match loaded {
        Ok(loaded) if args.json => {
            serde_json::to_writer_pretty(&mut *out, &as_json(&loaded))?;
            writeln!(out)?;
            Ok(Exit::Success)
        }
        Ok(loaded) => {
            as_text(&loaded, out)?;
            Ok(Exit::Success)
        }
        Err(invalid) if args.json => {
            serde_json::to_writer_pretty(&mut *out, &json!({ "ok": false, "problems": invalid.problems }))?;
            writeln!(out)?;
            Ok(Exit::Usage)
        }
        Err(invalid) => Err(invalid.into()),
    }
}

fn as_json(loaded: &Loaded) -> serde_json::Value {
    let seconds = |duration: Duration| duration.as_secs_f64();
    let recovery = loaded.settings.providers.values().map(|provider| {
        json!({
            "provider": provider.name,
            "on_uncertain": provider.on_uncertain,
            "dedup": provider.dedup,
            "dedup_scope": provider.recovery.dedup_scope,
            "window_seconds": seconds(provider.recovery.window),
            "resend_room_seconds": provider.recovery.resend_room.map(seconds),
            "attempt_max_seconds": seconds(provider.attempt_max()),
            "says": terms(provider),
        })
    });
    json!({
        "ok": true,
        "settings": loaded.entries,
        "recovery": recovery.collect::<Vec<_>>(),
        "warnings": loaded.warnings,
    })
}

fn as_text(loaded: &Loaded, out: &mut impl Write) -> std::io::Result<()> {
    for entry in &loaded.entries {
        writeln!(out, "{} = {}  # {}", entry.key, entry.value, entry.origin)?;
    }
    writeln!(out)?;
    for provider in loaded.settings.providers.values() {
        writeln!(out, "provider {}: {}", provider.name, terms(provider))?;
        writeln!(out, "provider {}: an attempt may take {}", provider.name, format_duration(provider.attempt_max()))?;
    }
    for warning in &loaded.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    writeln!(out, "the configuration is usable")
}

/// The recovery terms as a sentence.
fn terms(provider: &ProviderSettings) -> String {
    let terms = &provider.recovery;
    let window = format_duration(terms.window);
    let end = format!("a person is asked {window} after *begin* if no evidence came");
    match (provider.on_uncertain, terms.resend_room) {
        (OnUncertain::ResendWithinWindow, Some(room)) => format!(
            "a resend may begin until {} after the first doubtful begin, in the dedup scope {:?}; {end}",
            format_duration(room),
            terms.dedup_scope
        ),
        (OnUncertain::AcceptDuplicates, Some(room)) => format!(
            "a resend may begin until {} after the first doubtful begin, AND THE RECIPIENT MAY GET THE MESSAGE TWICE; {end}",
            format_duration(room)
        ),
        (OnUncertain::Hold, _) | (OnUncertain::ResendWithinWindow | OnUncertain::AcceptDuplicates, None) => {
            format!("a message in doubt is held and never resent by itself; {end}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Purpose, Sources, load};

    const RESENDING: &str = r#"
        mail.message_id_domain = "example.com"
        database.url = "postgres://app:hunter2@db/outbox"
        [provider.primary]
        host = "smtp.example.com"
        username = "app"
        password = "hunter2"
        on_uncertain = "resend-within-window"
        dedup.window = "24h"
        dedup.header = "Resend-Idempotency-Key"
    "#;

    fn check(text: &str, json: bool) -> (anyhow::Result<Exit>, String) {
        let file = Some(("outboxd.toml".into(), text.to_owned()));
        let mut out = Vec::new();
        let exit = run(&Args { json }, load(&Sources { file, ..Sources::default() }, Purpose::Send), &mut out);
        (exit, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_recovery_terms_are_worked_out() {
        let (exit, text) = check(RESENDING, false);
        assert_eq!(exit.unwrap(), Exit::Success);
        assert!(text.contains("a resend may begin until 23h 34m 30s after the first doubtful begin"), "{text}");
        let (exit, json) = check(RESENDING, true);
        assert_eq!(exit.unwrap(), Exit::Success);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["recovery"][0]["resend_room_seconds"], 84_870.0);
        assert_eq!(json["ok"], true);
    }

    #[test]
    fn secrets_show_in_neither_form() {
        for json in [false, true] {
            let (_, output) = check(RESENDING, json);
            assert!(output.contains("<redacted>") && !output.contains("hunter2"), "{output}");
        }
    }

    #[test]
    fn what_is_wrong_ends_in_the_usage_exit_code() {
        let (exit, output) = check("lease.nonsense = 1", true);
        assert_eq!(exit.unwrap(), Exit::Usage);
        assert!(output.contains("lease.nonsense"), "{output}");
        let (exit, output) = check("lease.nonsense = 1", false);
        assert_eq!(Exit::of_error(&exit.unwrap_err()), Exit::Usage);
        assert!(output.is_empty());
    }
}
