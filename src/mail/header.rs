//! How a header's value becomes lines of ASCII: folded, quoted or in encoded words.
//!
//! Every function is total and deterministic: what [`crate::domain::content`] took comes out as lines of at most 998
//! octets that mean the same, whatever it holds. lettre's own encoder passes `=?…?=` through, and can be brought to lines
//! of any length.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The line length to aim at (RFC 5322, 2.1.1).
const LINE_GOAL_OCTETS: usize = 78;

/// The longest line that holds an encoded word (RFC 2047, 2).
const ENCODED_LINE_MAX_OCTETS: usize = 76;

const ENCODED_START: &str = "=?utf-8?b?";
const ENCODED_END: &str = "?=";

/// The longest name that is written as one quoted string: longer ones can be folded only as encoded words.
const QUOTED_NAME_MAX_OCTETS: usize = 60;

/// Free text for people, such as a subject: as it is where that is safe, else in encoded words.
pub(super) fn text(header: &str, value: &str) -> String {
    let foldable = value.split(' ').all(|word| word.len() <= QUOTED_NAME_MAX_OCTETS);
    if is_plain(value) && foldable && value.trim() == value {
        fold(header, value)
    } else {
        encoded_words(header, value)
    }
}

/// Text for programs, such as a producer's own header: as it is where it is ASCII, else in encoded words.
pub(super) fn verbatim(header: &str, value: &str) -> String {
    if value.is_ascii() { fold(header, value) } else { encoded_words(header, value) }
}

/// An address, with the name to show for it (RFC 5322, 3.4).
pub(super) fn mailbox(header: &str, name: Option<&str>, address: &str) -> String {
    let Some(name) = name else { return address.to_owned() };
    let mut value =
        if is_plain(name) && name.len() <= QUOTED_NAME_MAX_OCTETS { quoted(name) } else { encoded_words(header, name) };
    let line = match value.rsplit_once("\r\n") {
        Some((_, last)) => last.len(),
        None => header.len() + ": ".len() + value.len(),
    };
    if line + " <>".len() + address.len() > LINE_GOAL_OCTETS {
        value.push_str("\r\n");
    }
    value.push_str(" <");
    value.push_str(address);
    value.push('>');
    value
}

/// A `Content-Disposition` with a file's name (RFC 2183; RFC 2231, 4). Never in continuations, which many readers do not
/// know: the longest name fits one line even where each octet takes three.
pub(super) fn attachment(filename: &str) -> String {
    if is_plain(filename) {
        return format!("attachment;\r\n filename={}", quoted(filename));
    }
    let mut value = "attachment;\r\n filename*=utf-8''".to_owned();
    for byte in filename.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') {
            value.push(char::from(byte));
        } else {
            value.push_str(&format!("%{byte:02X}"));
        }
    }
    value
}

/// Whether `value` is printable ASCII that no reader takes for an encoded word.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b' '..=b'~')) && !value.contains("=?")
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

/// Folds at single spaces between words: a space beside another one could be lost by a reader that unfolds loosely.
fn fold(header: &str, value: &str) -> String {
    let mut out = String::with_capacity(value.len() + value.len() / 32);
    let mut line = header.len() + ": ".len();
    for (index, word) in value.split(' ').enumerate() {
        if index > 0 {
            if line + 1 + word.len() > LINE_GOAL_OCTETS && !word.is_empty() && !out.ends_with(' ') {
                out.push_str("\r\n");
                line = 0;
            }
            out.push(' ');
            line += 1;
        }
        out.push_str(word);
        line += word.len();
    }
    out
}

/// Base64 encoded words, one a line, none of which splits a character (RFC 2047, 5).
fn encoded_words(header: &str, value: &str) -> String {
    let room = |used: usize| {
        let octets = ENCODED_LINE_MAX_OCTETS.saturating_sub(used + ENCODED_START.len() + ENCODED_END.len());
        octets / 4 * 3
    };
    let mut out = String::with_capacity(value.len() * 2);
    let mut rest = value;
    let mut budget = room(header.len() + ": ".len());
    while let Some(first) = rest.chars().next() {
        if budget >= first.len_utf8() {
            let (word, after) = rest.split_at(rest.floor_char_boundary(budget));
            out.push_str(ENCODED_START);
            STANDARD.encode_string(word, &mut out);
            out.push_str(ENCODED_END);
            rest = after;
        }
        if !rest.is_empty() {
            out.push_str("\r\n ");
            budget = room(" ".len());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_readable_and_is_folded_at_spaces() {
        assert_eq!(text("Subject", "Your order 17 is on its way"), "Your order 17 is on its way");
        let long = "word ".repeat(40);
        let folded = text("Subject", long.trim());
        assert!(folded.split("\r\n").all(|line| line.len() <= LINE_GOAL_OCTETS));
        assert_eq!(folded.replace("\r\n", ""), long.trim());
    }

    #[test]
    fn a_fold_never_falls_beside_a_second_space() {
        let value = format!("{}  b  {} c", "a".repeat(70), "d".repeat(70));
        assert_eq!(fold("X", &value), format!("{}  b  {}\r\n c", "a".repeat(70), "d".repeat(70)));
    }

    #[test]
    fn text_that_looks_like_an_encoded_word_is_encoded_so_that_it_reads_as_it_was_written() {
        assert_eq!(text("Subject", "=?utf-8?q?=0D=0A?="), "=?utf-8?b?PT91dGYtOD9xPz0wRD0wQT89?=");
        assert!(mailbox("To", Some("=?utf-8?q?x?="), "a@b").starts_with(ENCODED_START));
    }

    #[test]
    fn encoded_words_fit_their_line_and_split_no_character() {
        for header in ["To", "Subject", &"X".repeat(76)] {
            for value in ["é".repeat(400), format!("a{}", "🎉".repeat(200)), " b ".to_owned() + &"ü".repeat(9)] {
                let written = format!("{header}: {}", text(header, &value));
                for (index, line) in written.split("\r\n").enumerate() {
                    assert!(line.len() <= ENCODED_LINE_MAX_OCTETS || index == 0 && line == format!("{header}: "));
                }
                let decoded: Vec<u8> = written
                    .split(['\r', '\n', ' '])
                    .filter_map(|word| word.strip_prefix(ENCODED_START)?.strip_suffix(ENCODED_END))
                    .inspect(|word| assert!(String::from_utf8(STANDARD.decode(word).unwrap()).is_ok()))
                    .flat_map(|word| STANDARD.decode(word).unwrap())
                    .collect();
                assert_eq!(String::from_utf8(decoded).unwrap(), value);
            }
        }
    }

    #[test]
    fn a_file_name_is_one_parameter_of_one_line_whatever_it_is() {
        assert_eq!(attachment("a \"b\".pdf"), "attachment;\r\n filename=\"a \\\"b\\\".pdf\"");
        assert_eq!(attachment("é'.pdf"), "attachment;\r\n filename*=utf-8''%C3%A9%27.pdf");
        for longest in ["\"".repeat(255), "é".repeat(127)] {
            let value = attachment(&longest);
            assert!(value.split("\r\n").count() == 2 && value.len() < 900);
        }
    }

    #[test]
    fn a_name_is_quoted_so_that_it_cannot_end_early() {
        assert_eq!(mailbox("To", None, "a@b"), "a@b");
        assert_eq!(mailbox("To", Some("Jane Doe"), "a@b"), "\"Jane Doe\" <a@b>");
        assert_eq!(mailbox("To", Some("x\" <e@v>, \"\\"), "a@b"), "\"x\\\" <e@v>, \\\"\\\\\" <a@b>");
        let long = mailbox("To", Some(&"n".repeat(50)), &format!("{}@example.org", "a".repeat(60)));
        assert!(long.split("\r\n").count() == 2 && long.split("\r\n").all(|line| line.len() <= LINE_GOAL_OCTETS));
    }
}
