//! A message's bytes on the wire: what may not be sent, dot-stuffing, and the end of data (RFC 5321, 4.1.1.4 and 4.5.2).

use std::borrow::Cow;

/// What a look through a message found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Whether a byte is above 127.
    pub eight_bit: bool,
    /// How many lines begin with a dot.
    pub dots: usize,
}

/// Looks a message through. A bare CR or LF is where servers differ on what ends a line, so the end of a message could
/// be smuggled past one of them (RFC 5321, 2.3.8); it is refused, as is NUL.
///
/// # Errors
/// The reason why the message must not be sent.
pub fn inspect(message: &[u8]) -> Result<Shape, &'static str> {
    let mut shape = Shape { eight_bit: !message.is_ascii(), dots: 0 };
    for line in message.split_inclusive(|&byte| byte == b'\n') {
        let text = match line.strip_suffix(b"\n") {
            Some(text) => text.strip_suffix(b"\r").ok_or("the message has a bare LF")?,
            None => line,
        };
        if text.contains(&b'\r') {
            return Err("the message has a bare CR");
        }
        if text.contains(&b'\0') {
            return Err("the message has a NUL");
        }
        shape.dots += usize::from(text.first() == Some(&b'.'));
    }
    Ok(shape)
}

/// The message with a dot put before every line that begins with one.
pub(super) fn stuff(message: &[u8], shape: Shape) -> Cow<'_, [u8]> {
    if shape.dots == 0 {
        return Cow::Borrowed(message);
    }
    let mut stuffed = Vec::with_capacity(message.len() + shape.dots);
    for line in message.split_inclusive(|&byte| byte == b'\n') {
        if line.first() == Some(&b'.') {
            stuffed.push(b'.');
        }
        stuffed.extend_from_slice(line);
    }
    Cow::Owned(stuffed)
}

/// The end of data, with the line end that the message lacks.
pub(super) fn end_of_data(message: &[u8]) -> &'static [u8] {
    if message.is_empty() || message.ends_with(b"\r\n") { b".\r\n" } else { b"\r\n.\r\n" }
}

/// Whether `address` can stand between the angle brackets of MAIL or RCPT: nothing in it may end the path or the line.
///
/// # Errors
/// The reason why it must not be written.
pub(super) fn inspect_address(address: &str, smtputf8: bool) -> Result<(), &'static str> {
    let (mut quoted, mut escaped) = (false, false);
    for c in address.chars() {
        match c {
            _ if c.is_control() => return Err("an envelope address has a control character"),
            _ if !c.is_ascii() && !smtputf8 => return Err("an envelope address needs SMTPUTF8"),
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' | '<' | '>' if !quoted => return Err("an envelope address has a space or an angle bracket"),
            _ => {}
        }
    }
    if quoted { Err("an envelope address has an open quotation") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(message: &[u8]) -> Vec<u8> {
        let mut wire = stuff(message, inspect(message).unwrap()).into_owned();
        wire.extend_from_slice(end_of_data(message));
        wire
    }

    #[test]
    fn every_leading_dot_is_doubled() {
        assert_eq!(wire(b".a\r\nb.\r\n..c\r\n.\r\n"), b"..a\r\nb.\r\n...c\r\n..\r\n.\r\n");
        assert_eq!(wire(b"."), b"..\r\n.\r\n");
    }

    #[test]
    fn the_last_line_end_is_added_only_where_it_is_missing() {
        assert_eq!(wire(b"a\r\n"), b"a\r\n.\r\n");
        assert_eq!(wire(b"a"), b"a\r\n.\r\n");
        assert_eq!(wire(b""), b".\r\n");
    }

    #[test]
    fn a_bare_line_end_or_a_nul_is_refused() {
        for message in [&b"a\nb\r\n"[..], b"a\rb\r\n", b"a\r", b"\n", b"a\r\r\n", b"a\n.\n", b"a\0\r\n", b"a\r\n\n"] {
            assert!(inspect(message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn a_byte_above_127_makes_a_message_eight_bit() {
        assert!(!inspect(b"a\r\n").unwrap().eight_bit);
        assert!(inspect(b"a\xe9\r\n").unwrap().eight_bit);
    }

    #[test]
    fn an_address_cannot_end_its_path_or_its_line() {
        for address in
            ["a\r\nRCPT TO:<x>@d", "a\n@d", "a\0@d", "a b@d", "a>@d", "<a@d", "\"a\r\nb\"@d", "\"a@d", "\"a\\\"@d"]
        {
            assert!(inspect_address(address, true).is_err(), "{address:?}");
        }
        for address in ["a@d", "\"a b\"@d", "\"a>b\\\"<\"@d", "bounce+01-x@d", ""] {
            assert_eq!(inspect_address(address, false), Ok(()), "{address:?}");
        }
        assert!(inspect_address("josé@d", false).is_err());
        assert!(inspect_address("josé@d", true).is_ok());
    }

    fn lines() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![&b"."[..], b"..", b"a", b"\r\n", b"\r\n.", b"\r\n.\r\n", b"\xe9"]);
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn a_receiver_gets_back_what_was_meant(message in lines()) {
            let wire = wire(&message);
            let end = wire.windows(5).position(|part| part == b"\r\n.\r\n").map_or(0, |at| at + 2);
            prop_assert_eq!(&wire[end..], b".\r\n", "the end of data stands once, at the end");
            let mut received = Vec::new();
            for line in wire[..end].split_inclusive(|&byte| byte == b'\n') {
                received.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
            }
            let mut meant = message.clone();
            if !meant.is_empty() && !meant.ends_with(b"\r\n") {
                meant.extend_from_slice(b"\r\n");
            }
            prop_assert_eq!(received, meant);
        }

        #[test]
        fn no_bytes_make_the_inspection_panic(message: Vec<u8>) {
            let _ = inspect(&message);
        }
    }
}
