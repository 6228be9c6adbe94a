//! `outboxd worker`, `outboxd api` and `outboxd run`: what runs until it is told to stop.

use crate::app::{self, Part};
use crate::config::Loaded;
use crate::shutdown::Shutdown;
use crate::telemetry;

use super::Exit;

/// Runs the parts. SIGTERM or SIGINT drains them, a second one aborts.
///
/// # Errors
/// When one ends for another reason than a signal.
pub async fn run(loaded: Loaded, parts: &[Part]) -> anyhow::Result<Exit> {
    telemetry::init(&loaded.settings.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let shutdown = Shutdown::on_signals()?;
    app::run(loaded.settings, parts, shutdown).await?;
    Ok(Exit::Success)
}
