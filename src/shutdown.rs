//! Shutdown in two stages, passed in as a value: *drain* (take nothing new, finish what is under way), then *abort*.
//!
//! Cheap to clone and made without signals in tests. A stage is never taken back.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    Draining,
    Aborting,
}

/// Whether the process is to go on, to drain or to abort. Clones share one state.
#[derive(Debug, Clone)]
pub struct Shutdown(Arc<watch::Sender<Stage>>);

impl Shutdown {
    /// Running.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Stage::Running)))
    }

    /// Running until SIGTERM or SIGINT: the first drains, the second aborts. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let shutdown = Self::new();
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told = shutdown.clone();
        tokio::spawn(async move {
            for advance in [Self::drain, Self::abort] {
                let name = tokio::select! {
                    _ = term.recv() => "SIGTERM",
                    _ = int.recv() => "SIGINT",
                };
                tracing::info!(signal = name, "shutting down; a second signal does not wait for what is under way");
                advance(&told);
            }
        });
        Ok(shutdown)
    }

    /// Takes nothing new from here on.
    pub fn drain(&self) {
        self.advance(Stage::Draining);
    }

    /// Waits for nothing from here on. Includes [`Self::drain`].
    pub fn abort(&self) {
        self.advance(Stage::Aborting);
    }

    /// Whether draining or aborting.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= Stage::Draining
    }

    /// Whether aborting.
    #[must_use]
    pub fn is_aborting(&self) -> bool {
        *self.0.borrow() >= Stage::Aborting
    }

    /// Waits until draining (or aborting) begins; returns at once if it has.
    pub async fn draining(&self) {
        self.reached(Stage::Draining).await;
    }

    /// Waits until aborting begins; returns at once if it has.
    pub async fn aborting(&self) {
        self.reached(Stage::Aborting).await;
    }

    fn advance(&self, stage: Stage) {
        self.0.send_if_modified(|current| {
            let later = stage > *current;
            *current = stage.max(*current);
            later
        });
    }

    async fn reached(&self, stage: Stage) {
        // The sender lives in `self`, so the wait cannot end by its loss.
        let _ = self.0.subscribe().wait_for(|current| *current >= stage).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_clone_hears_of_draining_and_then_of_aborting() {
        let shutdown = Shutdown::new();
        let heard = shutdown.clone();
        let task = tokio::spawn(async move {
            heard.draining().await;
            assert!(!heard.is_aborting());
            heard.abort();
        });
        assert!(!shutdown.is_draining());
        shutdown.drain();
        assert!(shutdown.is_draining());
        shutdown.aborting().await;
        task.await.unwrap();
    }

    #[tokio::test]
    async fn aborting_includes_draining_and_is_never_taken_back() {
        let shutdown = Shutdown::new();
        shutdown.abort();
        shutdown.drain();
        shutdown.draining().await;
        assert!(shutdown.is_aborting());
    }

    #[tokio::test]
    async fn whoever_asks_late_is_told_at_once() {
        let shutdown = Shutdown::new();
        shutdown.drain();
        shutdown.clone().draining().await;
    }

    #[tokio::test]
    async fn the_first_signal_drains_and_the_second_aborts() {
        let shutdown = Shutdown::on_signals().unwrap();
        let kill = |signal: &str| {
            let pid = std::process::id().to_string();
            assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        };
        kill("-TERM");
        shutdown.draining().await;
        assert!(!shutdown.is_aborting());
        kill("-INT");
        shutdown.aborting().await;
    }
}
