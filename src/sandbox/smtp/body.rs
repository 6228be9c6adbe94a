//! The bytes between `354` and the final dot (RFC 5321, 4.5.2): unstuffed, and checked byte by byte.
//!
//! Only CRLF ends a line and only CRLF.CRLF ends the data, whatever bare LF and CR come before it.

/// The longest text line, CRLF included and the transparency dot not (RFC 5321, 4.5.3.1.6).
const TEXT_LINE_MAX_BYTES: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    LineStart,
    Dot,
    DotCr,
    Text,
    Cr,
}

/// A rule of RFC 5321, 5322, 6152 or 6531 that a body broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flaw {
    BareLf,
    BareCr,
    UnstuffedDot,
    LineTooLong,
    Nul,
    EightBitBody,
    EightBitHeader,
}

impl Flaw {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::BareLf => "bare LF in data (RFC 5321, 2.3.8)",
            Self::BareCr => "bare CR in data (RFC 5321, 2.3.8)",
            Self::UnstuffedDot => "a line of data starts with a single dot (RFC 5321, 4.5.2)",
            Self::LineTooLong => "a line of data is longer than 1000 octets (RFC 5321, 4.5.3.1.6)",
            Self::Nul => "NUL in data (RFC 5322, 2.2)",
            Self::EightBitBody => "8-bit data without BODY=8BITMIME (RFC 6152)",
            Self::EightBitHeader => "8-bit header without SMTPUTF8 (RFC 6531)",
        }
    }
}

/// What a body may contain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Permitted {
    pub(super) eight_bit_body: bool,
    pub(super) eight_bit_header: bool,
}

pub(super) struct Body {
    at: At,
    bytes: Vec<u8>,
    size: u64,
    max: u64,
    taken: u64,
    line: usize,
    in_header: bool,
    permitted: Permitted,
    flaws: Vec<Flaw>,
}

impl Body {
    pub(super) fn new(max: u64, permitted: Permitted) -> Self {
        Self {
            at: At::LineStart,
            bytes: Vec::new(),
            size: 0,
            max,
            taken: 0,
            line: 0,
            in_header: true,
            permitted,
            flaws: Vec::new(),
        }
    }

    /// How many bytes were fed, stuffing and all.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn too_big(&self) -> bool {
        self.size > self.max
    }

    /// Each flaw once, in the order of the first time.
    pub(super) fn flaws(&self) -> &[Flaw] {
        &self.flaws
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn flaw(&mut self, flaw: Flaw) {
        if !self.flaws.contains(&flaw) {
            self.flaws.push(flaw);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        self.line += bytes.len();
        if self.size <= self.max {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn text(&mut self, run: &[u8]) {
        if !run.is_ascii() {
            match self.in_header {
                true if !self.permitted.eight_bit_header => self.flaw(Flaw::EightBitHeader),
                false if !self.permitted.eight_bit_body => self.flaw(Flaw::EightBitBody),
                true | false => {}
            }
        }
        if run.contains(&0) {
            self.flaw(Flaw::Nul);
        }
        self.keep(run);
    }

    /// Takes bytes up to the end of data. Returns how many it used and whether the data ended with them.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> (usize, bool) {
        let mut used = 0;
        let ended = loop {
            let Some(&byte) = chunk.get(used) else { break false };
            match (self.at, byte) {
                (At::LineStart, b'.') => {
                    self.at = At::Dot;
                    used += 1;
                }
                (At::LineStart, _) => self.at = At::Text,
                (At::Dot, b'\r') => {
                    self.at = At::DotCr;
                    used += 1;
                }
                (At::Dot, b'.' | b'\n') => self.at = At::Text,
                (At::Dot, _) => {
                    self.flaw(Flaw::UnstuffedDot);
                    self.at = At::Text;
                }
                (At::DotCr, b'\n') => {
                    used += 1;
                    break true;
                }
                (At::DotCr, _) => {
                    self.flaw(Flaw::BareCr);
                    self.keep(b"\r");
                    self.at = At::Text;
                }
                (At::Text, b'\r') => {
                    self.at = At::Cr;
                    used += 1;
                }
                (At::Text, b'\n') => {
                    self.flaw(Flaw::BareLf);
                    self.keep(b"\n");
                    used += 1;
                }
                (At::Text, _) => {
                    let rest = &chunk[used..];
                    let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
                    self.text(&rest[..end]);
                    used += end;
                }
                (At::Cr, b'\n') => {
                    self.in_header &= self.line > 0;
                    self.keep(b"\r\n");
                    if self.line > TEXT_LINE_MAX_BYTES {
                        self.flaw(Flaw::LineTooLong);
                    }
                    self.line = 0;
                    self.at = At::LineStart;
                    used += 1;
                }
                (At::Cr, _) => {
                    self.flaw(Flaw::BareCr);
                    self.keep(b"\r");
                    self.at = At::Text;
                }
            }
        };
        self.taken += used as u64;
        (used, ended)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fed(chunks: &[&[u8]]) -> (Body, bool, usize) {
        let mut body = Body::new(u64::MAX, Permitted::default());
        let mut used = 0;
        for chunk in chunks {
            let (taken, ended) = body.feed(chunk);
            used += taken;
            if ended {
                return (body, true, used);
            }
        }
        (body, false, used)
    }

    fn flaws(data: &[u8]) -> Vec<Flaw> {
        fed(&[data]).0.flaws().to_vec()
    }

    #[test]
    fn dots_are_unstuffed_and_what_follows_the_end_is_left_alone() {
        let (body, ended, used) = fed(&[b"a\r\n..b\r\n...\r\n.\r\nQUIT\r\n"]);
        assert!(ended && body.flaws().is_empty());
        assert_eq!(used, b"a\r\n..b\r\n...\r\n.\r\n".len());
        assert_eq!(body.into_bytes(), b"a\r\n.b\r\n..\r\n");
    }

    #[test]
    fn a_body_may_be_empty() {
        let (body, ended, _) = fed(&[b".\r\n"]);
        assert!(ended && body.into_bytes().is_empty());
    }

    #[test]
    fn only_crlf_dot_crlf_ends_the_data() {
        for (data, flaw) in [
            (&b"a\n.\nb\r\n"[..], Flaw::BareLf),
            (b"a\n.\r\nb\r\n", Flaw::BareLf),
            (b"a\r\n.\nb\r\n", Flaw::BareLf),
            (b"a\r.\rb\r\n", Flaw::BareCr),
            (b"a\r\n.\rb\r\n", Flaw::BareCr),
            (b"a\r\n.b\r\n", Flaw::UnstuffedDot),
        ] {
            assert!(!fed(&[data]).1, "{data:?} ended");
            assert!(flaws(data).contains(&flaw), "{data:?}: {:?}", flaws(data));
        }
    }

    #[test]
    fn long_lines_nul_and_undeclared_eight_bit_data_are_flaws() {
        let line = |length: usize| [vec![b'x'; length], b"\r\n.\r\n".to_vec()].concat();
        assert_eq!(flaws(&line(998)), []);
        assert_eq!(flaws(&line(999)), [Flaw::LineTooLong]);
        assert_eq!(flaws(b"a\0b\r\n.\r\n"), [Flaw::Nul]);
        assert_eq!(flaws("S: \u{e9}\r\n\r\nhi\r\n.\r\n".as_bytes()), [Flaw::EightBitHeader]);
        assert_eq!(flaws("S: e\r\n\r\n\u{e9}\r\n.\r\n".as_bytes()), [Flaw::EightBitBody]);
        let mut body = Body::new(u64::MAX, Permitted { eight_bit_body: true, eight_bit_header: true });
        body.feed("S: \u{e9}\r\n\r\n\u{e9}\r\n.\r\n".as_bytes());
        assert_eq!(body.flaws(), []);
    }

    #[test]
    fn a_body_over_the_limit_is_read_to_its_end_and_not_kept() {
        let mut body = Body::new(4, Permitted::default());
        assert!(body.feed(b"abcdef\r\n.\r\n").1 && body.too_big());
        assert!(body.into_bytes().len() <= 4);
    }

    proptest! {
        #[test]
        fn what_was_stuffed_comes_back_however_it_is_cut(
            lines in prop::collection::vec("[.a-z ]{0,5}", 0..8),
            cut in 1_usize..7,
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let stuffed: String = lines
                .iter()
                .map(|line| if line.starts_with('.') { format!(".{line}\r\n") } else { format!("{line}\r\n") })
                .chain([".\r\n".to_owned()])
                .collect();
            let chunks: Vec<_> = stuffed.as_bytes().chunks(cut).collect();
            let (body, ended, used) = fed(&chunks);
            prop_assert!(ended && body.flaws().is_empty());
            prop_assert_eq!(used, stuffed.len());
            prop_assert_eq!(body.into_bytes(), text.into_bytes());
        }
    }
}
