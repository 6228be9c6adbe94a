//! `outboxd worker`: sends what is in the outbox until it is told to stop.

use crate::app;
use crate::config::Loaded;
use crate::shutdown::Shutdown;
use crate::telemetry;

use super::Exit;

/// Runs the worker. SIGTERM or SIGINT drains it, a second one aborts.
///
/// # Errors
/// When it ends for another reason than a signal.
pub async fn run(loaded: Loaded) -> anyhow::Result<Exit> {
    telemetry::init(&loaded.settings.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let shutdown = Shutdown::on_signals()?;
    app::run_worker(loaded.settings, shutdown).await?;
    Ok(Exit::Success)
}
