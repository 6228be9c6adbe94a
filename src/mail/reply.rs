//! Reads replies (RFC 5321, 4.2) out of whatever bytes a server sends, within fixed memory.
//!
//! A reply is acted on only when its last line is complete. Nothing that leaves here holds a NUL or a control character.

use std::fmt::Write as _;

use crate::domain::outcome::Reply;

/// The longest reply that is read: 128 lines of the 512 octets that RFC 5321, 4.5.3.1.5 allows; an EHLO reply has 20.
pub const REPLY_MAX_BYTES: usize = 64 * 1024;

/// The most lines in a reply: far more than any EHLO reply has, few enough to end a server that never ends.
pub const REPLY_MAX_LINES: usize = 256;

/// The buffer's first size: an EHLO reply and a few pipelined replies fit.
const BUFFER_START_BYTES: usize = 2 * 1024;

/// What the first digit of a reply code says; RFC 5321, 4.2 has a client act on nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// 2yz: done.
    Completed,
    /// 3yz: go on.
    Intermediate,
    /// 4yz: not done, and may be tried again.
    Transient,
    /// 5yz: not done, and must not be repeated as it is.
    Permanent,
    /// Anything else, such as 1yz, which SMTP has not got.
    Unknown,
}

impl Severity {
    /// The severity of a reply code.
    #[must_use]
    pub const fn of(code: u16) -> Self {
        match code / 100 {
            2 => Self::Completed,
            3 => Self::Intermediate,
            4 => Self::Transient,
            5 => Self::Permanent,
            _ => Self::Unknown,
        }
    }
}

/// Bytes received and not yet taken as replies, and how far they were looked through.
#[derive(Debug)]
pub(super) struct ReplyBuffer {
    bytes: Vec<u8>,
    start: usize,
    filled: usize,
    scanned: usize,
    line: usize,
    lines: usize,
    code: Option<u16>,
}

impl ReplyBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BUFFER_START_BYTES], start: 0, filled: 0, scanned: 0, line: 0, lines: 0, code: None }
    }

    /// Whether nothing is left over.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.filled
    }

    /// Room for more bytes; empty when the longest reply is already there without an end.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start > 0 && (self.is_empty() || self.filled == self.bytes.len()) {
            self.bytes.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.scanned -= self.start;
            self.line -= self.start;
            self.start = 0;
        }
        if self.filled == self.bytes.len() && self.bytes.len() < REPLY_MAX_BYTES {
            self.bytes.resize((self.bytes.len() * 2).min(REPLY_MAX_BYTES), 0);
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// Says that `count` bytes were put into [`Self::space`].
    pub(super) fn advance(&mut self, count: usize) {
        self.filled = (self.filled + count).min(self.bytes.len());
    }

    /// Takes the next reply out if it is complete; `each_line` is given the text of each of its lines.
    ///
    /// After an error the bytes that follow mean nothing: the connection must be dropped.
    pub(super) fn take(&mut self, mut each_line: impl FnMut(&[u8])) -> Result<Option<Reply>, &'static str> {
        loop {
            let unseen = self.bytes.get(self.scanned..self.filled).unwrap_or_default();
            let Some(at) = unseen.iter().position(|&byte| byte == b'\n') else {
                self.scanned = self.filled;
                let partial = self.bytes.get(self.line..self.filled).unwrap_or_default();
                if partial.len() >= CODE_AND_SEPARATOR {
                    // Its first four bytes decide, so a peer that does not speak SMTP need not be waited for.
                    read_line(partial)?;
                }
                if self.filled - self.start >= REPLY_MAX_BYTES {
                    return Err("a reply without an end");
                }
                return Ok(None);
            };
            let line = self.bytes.get(self.line..self.scanned + at).unwrap_or_default();
            let (code, last) = read_line(line)?;
            self.lines += 1;
            if self.lines > REPLY_MAX_LINES {
                return Err("a reply of too many lines");
            }
            if *self.code.get_or_insert(code) != code {
                return Err("a reply whose lines have different codes");
            }
            self.scanned += at + 1;
            self.line = self.scanned;
            if last {
                let raw = self.bytes.get(self.start..self.scanned).unwrap_or_default();
                let reply = compose(code, raw, &mut each_line);
                self.start = self.scanned;
                self.lines = 0;
                self.code = None;
                return Ok(Some(reply));
            }
        }
    }
}

/// Three digits and the space or hyphen behind them.
const CODE_AND_SEPARATOR: usize = 4;

fn without_line_end(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|&byte| byte != b'\r' && byte != b'\n').map_or(0, |at| at + 1);
    line.get(..end).unwrap_or_default()
}

/// The code of a line and whether it is the reply's last. A bare code is a whole line (RFC 5321, 4.2).
fn read_line(line: &[u8]) -> Result<(u16, bool), &'static str> {
    match *without_line_end(line) {
        [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', ref rest @ ..] => {
            let code = u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0');
            match rest.first() {
                None | Some(b' ') => Ok((code, true)),
                Some(b'-') => Ok((code, false)),
                Some(_) => Err("a line that is not a reply"),
            }
        }
        _ => Err("a line that is not a reply"),
    }
}

fn compose(code: u16, raw: &[u8], each_line: &mut impl FnMut(&[u8])) -> Reply {
    let mut enhanced: Option<String> = None;
    let mut text = String::new();
    for (index, line) in raw.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let mut said = without_line_end(line).get(CODE_AND_SEPARATOR..).unwrap_or_default();
        each_line(said);
        if let Some((found, rest)) = split_enhanced(said)
            && (index == 0 || enhanced.as_deref() == Some(found))
        {
            enhanced.get_or_insert_with(|| found.to_owned());
            said = rest;
        }
        if !said.is_empty() {
            if !text.is_empty() && text.len() < Reply::TEXT_MAX_BYTES {
                text.push(' ');
            }
            escape_into(&mut text, said, Reply::TEXT_MAX_BYTES);
        }
    }
    Reply { code, enhanced, text }
}

/// Splits an enhanced status code (RFC 3463, 2) from the start of a reply's text.
fn split_enhanced(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
    let (word, rest) = text.split_at_checked(end)?;
    let word = std::str::from_utf8(word).ok()?;
    let mut parts = word.split('.');
    let class = parts.next()?;
    let number = |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let valid = matches!(class, "2" | "4" | "5")
        && parts.next().is_some_and(number)
        && parts.next().is_some_and(number)
        && parts.next().is_none();
    valid.then(|| (word, rest.trim_ascii_start()))
}

/// Appends `bytes` without control characters and without breaking UTF-8, as far as `max` bytes go.
fn escape_into(text: &mut String, bytes: &[u8], max: usize) {
    let mut escaped = String::with_capacity(4);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\t' {
                escaped.push(' ');
            } else if c.is_control() {
                let _ = write!(escaped, "\\x{:02x}", u32::from(c));
            } else {
                escaped.push(c);
            }
            if !push_whole(text, &mut escaped, max) {
                return;
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(escaped, "\\x{byte:02x}");
            if !push_whole(text, &mut escaped, max) {
                return;
            }
        }
    }
}

fn push_whole(text: &mut String, piece: &mut String, max: usize) -> bool {
    let fits = text.len() + piece.len() <= max;
    if fits {
        text.push_str(piece);
    }
    piece.clear();
    fits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives the bytes in pieces of `step` and returns the replies read, and the error that ended it.
    fn read(bytes: &[u8], step: usize) -> (Vec<Reply>, Option<&'static str>) {
        let mut buffer = ReplyBuffer::new();
        let mut replies = Vec::new();
        for piece in bytes.chunks(step.max(1)) {
            let mut piece = piece;
            while !piece.is_empty() {
                let space = buffer.space();
                let count = space.len().min(piece.len());
                assert!(count > 0, "no room, and no error said so");
                space[..count].copy_from_slice(&piece[..count]);
                buffer.advance(count);
                piece = &piece[count..];
                assert!(buffer.bytes.len() <= REPLY_MAX_BYTES);
                loop {
                    match buffer.take(|_| ()) {
                        Ok(Some(reply)) => replies.push(reply),
                        Ok(None) => break,
                        Err(error) => return (replies, Some(error)),
                    }
                }
            }
        }
        (replies, None)
    }

    fn one(bytes: &[u8]) -> Reply {
        let (mut replies, error) = read(bytes, usize::MAX);
        assert_eq!((replies.len(), error), (1, None), "{bytes:?}");
        replies.remove(0)
    }

    #[test]
    fn a_bare_code_is_a_reply() {
        assert_eq!(one(b"250\r\n"), Reply { code: 250, enhanced: None, text: String::new() });
        assert_eq!(one(b"250-\r\n250\r\n").code, 250);
    }

    #[test]
    fn a_line_may_end_with_lf_alone() {
        assert_eq!(one(b"250 ok\n").text, "ok");
    }

    #[test]
    fn any_second_and_third_digit_is_a_reply() {
        assert_eq!(one(b"260 odd\r\n").code, 260);
        assert_eq!(one(b"299 odd\r\n").code, 299);
    }

    #[test]
    fn latin_1_text_is_kept_escaped() {
        assert_eq!(one(b"250 Gr\xfc\xdfe\r\n").text, "Gr\\xfc\\xdfe");
        assert_eq!(one("250 Grüße\r\n".as_bytes()).text, "Grüße");
    }

    #[test]
    fn nul_and_control_characters_are_escaped() {
        assert_eq!(one(b"250 a\0b\x1b[31m\tc\xc2\x85\r\n").text, "a\\x00b\\x1b[31m c\\x85");
    }

    #[test]
    fn the_enhanced_code_is_taken_out_of_every_line() {
        let reply = one(b"550-5.1.1 no such\r\n550-5.1.1 user\r\n550 5.2.2 here\r\n");
        assert_eq!(reply.enhanced.as_deref(), Some("5.1.1"));
        assert_eq!(reply.text, "no such user 5.2.2 here");
        assert_eq!(one(b"250 2.0.0\r\n").enhanced.as_deref(), Some("2.0.0"));
        for text in ["10.0.0.1 ready", "5.1 x", "5.1.1.1 x", "3.1.1 x", "5.1.1234 x", "5..1 x"] {
            assert_eq!(one(format!("250 {text}\r\n").as_bytes()).enhanced, None, "{text}");
        }
    }

    #[test]
    fn a_long_line_is_read_and_its_text_cut() {
        let reply = one(format!("250 {}\r\n", "é".repeat(20_000)).as_bytes());
        assert_eq!(reply.text.len(), Reply::TEXT_MAX_BYTES);
    }

    #[test]
    fn a_reply_without_an_end_is_an_error() {
        let (replies, error) = read(format!("250 {}", "x".repeat(REPLY_MAX_BYTES)).as_bytes(), 1000);
        assert_eq!((replies.len(), error), (0, Some("a reply without an end")));
        let (replies, error) = read("250-x\r\n".repeat(REPLY_MAX_LINES + 1).as_bytes(), 1000);
        assert_eq!((replies.len(), error), (0, Some("a reply of too many lines")));
    }

    #[test]
    fn what_is_no_reply_is_an_error_without_waiting_for_a_line_end() {
        for bytes in [&b"HTTP/1.1"[..], b"\x16\x03\x01\x02", b"2500 ok", b"950 ok", b"25x ok", b"250_ok"] {
            assert_eq!(read(bytes, 1).1, Some("a line that is not a reply"), "{bytes:?}");
        }
        assert_eq!(read(b"\r\n", 1).1, Some("a line that is not a reply"));
        assert_eq!(read(b"250-a\r\n550 b\r\n", 1).1, Some("a reply whose lines have different codes"));
    }

    #[test]
    fn half_a_reply_is_no_reply() {
        for bytes in [&b"2"[..], b"250", b"250 ok", b"250 ok\r", b"250-ok\r\n", b"250-ok\r\n250 "] {
            assert_eq!(read(bytes, 1), (vec![], None), "{bytes:?}");
        }
    }

    fn reply_like() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<Vec<u8>>(),
            prop::sample::select(vec![&b"250"[..], b"-", b" ", b"\r\n", b"\n", b"5.1.1", b"550 5.7.1 x\r\n", b"\0"])
                .prop_map(<[u8]>::to_vec),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_same_safe_replies(bytes in reply_like(), step in 1usize..64) {
            let whole = read(&bytes, usize::MAX);
            let pieces = read(&bytes, step);
            prop_assert_eq!(&whole, &pieces);
            for reply in whole.0 {
                prop_assert!((100..600).contains(&reply.code));
                prop_assert!(reply.text.len() <= Reply::TEXT_MAX_BYTES);
                prop_assert!(!reply.text.chars().any(char::is_control));
            }
        }
    }
}
