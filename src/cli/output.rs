//! Standard output whose reader may go away before everything is told, as `head` and a pager do.

use std::error::Error;
use std::fmt;
use std::io::{self, Stdout, Write};

/// Standard output: that nobody reads it any more is told apart from every other broken pipe.
#[derive(Debug)]
pub(super) struct Output(Stdout);

/// Nobody reads standard output any more.
#[derive(Debug, Clone, Copy)]
struct Unread;

impl Output {
    pub(super) fn new() -> Self {
        Self(io::stdout())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(told_apart)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(told_apart)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl Error for Unread {}

fn told_apart(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe { io::Error::new(error.kind(), Unread) } else { error }
}

/// Whether a command ended because nobody read it any more.
pub(super) fn is_unread(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.get_ref().is_some_and(|inner| inner.is::<Unread>()))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn only_the_own_pipe_counts() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let own = Err::<(), _>(told_apart(broken())).context("writing a table").unwrap_err();
        assert!(is_unread(&own));
        assert!(!is_unread(&anyhow::Error::from(broken()).context("asking the database")));
        assert!(!is_unread(&anyhow::Error::from(told_apart(io::Error::other("full")))));
    }
}
