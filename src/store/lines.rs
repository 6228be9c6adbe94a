//! A bounded set of lines for many short tasks.
//!
//! A line comes back when its user drops it; one whose statement failed comes back without its connection.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Line;
use super::line::Dsn;

/// Lines to share. Clones share them.
#[derive(Debug, Clone)]
pub struct Lines {
    dsn: Dsn,
    idle: Arc<Mutex<Vec<Line>>>,
    permits: Arc<Semaphore>,
}

/// A line on loan.
#[derive(Debug)]
pub struct Loan {
    line: Line,
    lines: Lines,
    _permit: OwnedSemaphorePermit,
}

impl Lines {
    /// At most `most` connections, each opened when it is first needed.
    #[must_use]
    pub fn new(dsn: Dsn, most: u16) -> Self {
        Self { dsn, idle: Arc::default(), permits: Arc::new(Semaphore::new(most.into())) }
    }

    /// Waits for a line. First come, first served.
    pub async fn lend(&self) -> Loan {
        // Nobody closes the semaphore; if somebody did, waiting for ever would be right.
        let permit = match Arc::clone(&self.permits).acquire_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Loan { line: idle.unwrap_or_else(|| self.dsn.line()), lines: self.clone(), _permit: permit }
    }
}

impl Deref for Loan {
    type Target = Line;

    fn deref(&self) -> &Line {
        &self.line
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut Line {
        &mut self.line
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // A line that has no connection yet takes its place: it costs nothing.
        let line = std::mem::replace(&mut self.line, self.lines.dsn.line());
        self.lines.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}
