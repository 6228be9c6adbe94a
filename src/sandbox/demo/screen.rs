//! What the demo shows: lines that stay, and one line that is redrawn while it runs.
//!
//! It writes where it is told to and decides nothing about the demo.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

/// How often progress becomes a line of its own where no line can be redrawn: a log of a minute stays a page.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Forget the line, and cut what does not fit instead of wrapping it.
const REDRAW: &str = "\r\x1b[2K\x1b[?7l";

/// Wrap again.
const WRAP: &str = "\x1b[?7h";

/// How much may be shown, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// Whether a line can be redrawn.
    pub live: bool,
    /// Whether colours may be used.
    pub colour: bool,
    /// Whether only the outcome is shown.
    pub quiet: bool,
}

impl Look {
    /// What suits standard output: redrawn and coloured on a terminal, but without colours where `NO_COLOR` asks for none
    /// (no-color.org).
    #[must_use]
    pub fn of_standard_output(quiet: bool) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let live = io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { live, colour: live && !set("NO_COLOR"), quiet }
    }
}

/// A colour of the terminal's own, so that it can be read on any background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Bold,
    Dim,
    Good,
    Bad,
    Notice,
}

/// Where the demo is shown.
pub(super) struct Screen<'a> {
    out: &'a mut dyn Write,
    look: Look,
    started: Instant,
    drawn: bool,
    next_plain: Instant,
}

impl<'a> Screen<'a> {
    pub(super) fn new(out: &'a mut dyn Write, look: Look) -> Self {
        let started = Instant::now();
        Self { out, look, started, drawn: false, next_plain: started + PLAIN_EVERY }
    }

    /// How long the demo has been running.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// `text` in `ink`, where colours may be used.
    pub(super) fn ink(&self, ink: Ink, text: impl Display) -> String {
        let code = match ink {
            Ink::Bold => 1,
            Ink::Dim => 2,
            Ink::Good => 32,
            Ink::Bad => 31,
            Ink::Notice => 36,
        };
        if self.look.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// A line of the outcome: always shown.
    pub(super) fn line(&mut self, text: impl Display) -> io::Result<()> {
        self.wipe()?;
        writeln!(self.out, "{text}")
    }

    /// A heading of the outcome.
    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        let text = self.ink(Ink::Bold, text);
        self.line(format_args!("\n{text}"))
    }

    /// Something that just happened, with its time; not shown to the quiet.
    pub(super) fn event(&mut self, text: &str) -> io::Result<()> {
        if self.look.quiet {
            return Ok(());
        }
        let time = self.time();
        self.line(format_args!("{time}  {text}"))
    }

    /// How things stand.
    pub(super) fn progress(&mut self, text: &str) -> io::Result<()> {
        if self.look.quiet {
            return Ok(());
        }
        let time = self.time();
        if self.look.live {
            self.drawn = true;
            write!(self.out, "{REDRAW}{time}  {text}{WRAP}")?;
            return self.out.flush();
        }
        if Instant::now() < self.next_plain {
            return Ok(());
        }
        self.next_plain = Instant::now() + PLAIN_EVERY;
        writeln!(self.out, "{time}  {text}")?;
        self.out.flush()
    }

    fn time(&self) -> String {
        self.ink(Ink::Dim, format_args!("{:5.1}s", self.elapsed().as_secs_f64()))
    }

    fn wipe(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.drawn) {
            write!(self.out, "{REDRAW}{WRAP}")?;
        }
        Ok(())
    }
}

/// A number as people read it: `3,000`.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(look: Look, show: impl Fn(&mut Screen<'_>)) -> String {
        let mut out = Vec::new();
        show(&mut Screen::new(&mut out, look));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let texts: Vec<_> = [0, 999, 1_000, 1_234_567].into_iter().map(grouped).collect();
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_pipe_gets_no_escape_codes_and_the_quiet_get_the_outcome_only() {
        let all = |screen: &mut Screen<'_>| {
            screen.event("an event").unwrap();
            screen.progress("progress").unwrap();
            screen.heading("heading").unwrap();
        };
        let plain = shown(Look::default(), all);
        assert!(plain.contains("an event") && !plain.contains('\x1b'), "{plain:?}");
        let quiet = shown(Look { quiet: true, ..Look::default() }, all);
        assert_eq!(quiet, "\nheading\n");
    }

    #[test]
    fn a_line_that_stays_takes_the_place_of_the_one_that_is_redrawn() {
        let live = shown(Look { live: true, ..Look::default() }, |screen| {
            screen.progress("progress").unwrap();
            screen.line("outcome").unwrap();
        });
        assert!(live.ends_with(&format!("{REDRAW}{WRAP}outcome\n")), "{live:?}");
    }
}
