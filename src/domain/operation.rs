//! The name of one intent: account, operation type, request key.
//!
//! A key is compared octet by octet: it is never trimmed, folded or normalised.

use std::fmt;

/// The type of operation that `POST /v1/messages` performs.
pub const CREATE_MESSAGE: &str = "messages.create";

/// The longest key, in octets: ample for a UUID with a MAC or for the name of an intent, small enough for an index.
pub const REQUEST_KEY_MAX_OCTETS: usize = 200;

/// The key that a caller makes once, before the first attempt of an operation: 1 to 200 printable ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestKey(String);

/// Why a text is not a request key. Never holds the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// Nothing there, or nothing between the quotes.
    #[error("is empty; give a key made once for this intent, such as a UUID")]
    Empty,
    /// Over [`REQUEST_KEY_MAX_OCTETS`].
    #[error("is longer than {REQUEST_KEY_MAX_OCTETS} characters; give a shorter one")]
    TooLong,
    /// Not a string of RFC 9651, 3.3.3, nor a bare key.
    #[error(
        "is not one string (RFC 9651, 3.3.3); give it in double quotes, in printable ASCII, such as \"8e03978e-40d5\""
    )]
    NotAString,
}

impl RequestKey {
    /// Takes the key itself, such as a decoded part of a path.
    ///
    /// # Errors
    /// When it is empty, too long, or not printable ASCII.
    pub fn new(text: impl Into<String>) -> Result<Self, KeyProblem> {
        let text = text.into();
        if text.is_empty() {
            return Err(KeyProblem::Empty);
        }
        if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(KeyProblem::NotAString);
        }
        if text.len() > REQUEST_KEY_MAX_OCTETS {
            return Err(KeyProblem::TooLong);
        }
        Ok(Self(text))
    }

    /// Reads the value of an `Idempotency-Key` header: a string (RFC 9651, 3.3.3), or the key without quotes, as many
    /// clients send it, where it holds nothing that would need them.
    ///
    /// # Errors
    /// When it is neither.
    pub fn from_header(value: &[u8]) -> Result<Self, KeyProblem> {
        let text = std::str::from_utf8(value).map_err(|_| KeyProblem::NotAString)?.trim_matches([' ', '\t']);
        let Some(quoted) = text.strip_prefix('"') else {
            let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:+/=".contains(&byte);
            return if text.bytes().all(bare) { Self::new(text) } else { Err(KeyProblem::NotAString) };
        };
        let mut key = String::with_capacity(quoted.len());
        let mut characters = quoted.chars();
        loop {
            match characters.next() {
                Some('\\') => match characters.next() {
                    Some(escaped @ ('"' | '\\')) => key.push(escaped),
                    Some(_) | None => return Err(KeyProblem::NotAString),
                },
                Some('"') if characters.as_str().is_empty() => return Self::new(key),
                Some('"') | None => return Err(KeyProblem::NotAString),
                Some(other) => key.push(other),
            }
        }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of an `Idempotency-Key` header that says this key.
    #[must_use]
    pub fn to_header(&self) -> String {
        format!("\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a caller intends, under the one name that it has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The account of the caller's token.
    pub account_id: String,
    /// The type, such as [`CREATE_MESSAGE`].
    pub operation: String,
    /// The caller's key.
    pub request_key: RequestKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_key_and_the_same_bare_key_are_one() {
        for (header, key) in [
            ("\"8e03978e-40d5-43e8-bc93-6894a57f9324\"", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
            ("8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
            (" \"a b\"\t", "a b"),
            (r#""say \"hi\" \\ bye""#, r#"say "hi" \ bye"#),
            ("order:17/confirm=1+2~x._", "order:17/confirm=1+2~x._"),
            ("\" a\"", " a"),
        ] {
            assert_eq!(RequestKey::from_header(header.as_bytes()).unwrap().as_str(), key, "{header}");
        }
    }

    #[test]
    fn what_is_not_one_string_is_refused() {
        for header in [
            "a b",
            "\"a",
            "a\"",
            "\"a\"b",
            "\"a\", \"b\"",
            "\"a\";p=1",
            "\"a\\n\"",
            "\"a\\",
            "'a'",
            "a,b",
            "\"\u{e9}\"",
            "\"\u{7f}\"",
            "?1",
            ":YQ==:x y",
        ] {
            assert_eq!(RequestKey::from_header(header.as_bytes()), Err(KeyProblem::NotAString), "{header}");
        }
        assert_eq!(RequestKey::from_header(b"\"\xff\""), Err(KeyProblem::NotAString));
        for empty in ["", "  ", "\"\""] {
            assert_eq!(RequestKey::from_header(empty.as_bytes()), Err(KeyProblem::Empty));
        }
    }

    #[test]
    fn a_key_is_bounded_and_survives_the_way_through_the_header() {
        assert_eq!(RequestKey::new("k".repeat(201)), Err(KeyProblem::TooLong));
        for key in ["k".repeat(200), r#"\"" \"#.to_owned(), " ".to_owned(), "~".to_owned()] {
            let key = RequestKey::new(key).unwrap();
            assert_eq!(RequestKey::from_header(key.to_header().as_bytes()).unwrap(), key);
        }
    }
}
