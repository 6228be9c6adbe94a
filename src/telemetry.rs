//! Logging to standard error, as text or as JSON lines. Everything else only emits `tracing` events.
//!
//! Standard output belongs to what a command answers.

use std::io;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt};

use crate::config::{Log, LogFormat};

/// Starts logging for the whole process.
///
/// # Errors
/// When logging was started before.
pub fn init(log: &Log) -> Result<(), tracing::subscriber::SetGlobalDefaultError> {
    tracing::subscriber::set_global_default(subscriber(log, io::stderr))
}

/// The subscriber that writes to `writer` as `log` says.
fn subscriber<W>(log: &Log, writer: W) -> impl Subscriber + Send + Sync + use<W>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = match log.format {
        // Colours would end up in log files: nobody reads a worker's terminal for long.
        LogFormat::Text => fmt::layer().with_ansi(false).with_writer(writer).boxed(),
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(writer).boxed(),
    };
    Registry::default().with(layer.with_filter(log.level.clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sheet(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sheet {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: LogFormat, level: &str, events: impl Fn()) -> String {
        let sheet = Sheet::default();
        let writer = sheet.clone();
        let log = Log { format, level: level.parse().unwrap() };
        tracing::subscriber::with_default(subscriber(&log, move || writer.clone()), events);
        let bytes = sheet.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_lines_carry_the_fields_of_an_event_at_the_top() {
        let line = written(LogFormat::Json, "info", || tracing::info!(attempt = 3, "settled"));
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((event["attempt"].as_i64(), event["message"].as_str()), (Some(3), Some("settled")));
        assert!(event["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn the_level_can_differ_by_target() {
        let text = written(LogFormat::Text, "warn,outboxd=debug", || {
            tracing::debug!(target: "outboxd::worker", "ours");
            tracing::info!(target: "sqlx", "theirs");
        });
        assert!(text.contains("ours") && !text.contains("theirs"), "{text}");
    }

    #[test]
    fn text_is_free_of_escape_codes() {
        assert!(!written(LogFormat::Text, "info", || tracing::warn!("plain")).contains('\u{1b}'));
    }
}
