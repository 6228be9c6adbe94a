//! An email address, parsed once: what is stored, what goes on the wire, and what a log may show.
//!
//! It holds an address alone, never a display name. It must never print one in full except through
//! [`EmailAddress::as_str`] and [`EmailAddress::wire`].

use std::fmt;
use std::str::FromStr;

/// The longest address, in octets: a path is at most 256 octets with its angle brackets (RFC 5321, 4.5.3.1.3).
pub const ADDRESS_MAX_OCTETS: usize = 254;

/// The longest local part, in octets (RFC 5321, 4.5.3.1.1).
pub const LOCAL_PART_MAX_OCTETS: usize = 64;

/// The longest domain, in octets as it goes on the wire: 255 in DNS with the length octets (RFC 1035, 2.3.4).
const DOMAIN_MAX_OCTETS: usize = 253;

/// The longest label of a domain, in octets (RFC 1035, 2.3.4).
const LABEL_MAX_OCTETS: usize = 63;

/// One mailbox's address (RFC 5321, 4.1.2, and RFC 6531 for non-ASCII ones).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EmailAddress {
    stored: String,
    /// Where the wire form differs from the stored one.
    wire: Option<String>,
}

impl EmailAddress {
    /// The address as it was stored, in full: for the database and for people who may see it, not for a log.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.stored
    }

    /// The address for SMTP commands and header fields, in full: the local part as it is, the domain in A-labels
    /// (RFC 5890, 2.3.2.1). ASCII unless [`Self::needs_smtputf8`].
    #[must_use]
    pub fn wire(&self) -> &str {
        self.wire.as_deref().unwrap_or(&self.stored)
    }

    /// Whether only a server with SMTPUTF8 can take this address (RFC 6531): its local part is not ASCII.
    #[must_use]
    pub fn needs_smtputf8(&self) -> bool {
        !self.wire().is_ascii()
    }
}

/// Why a text is not an address that mail can be sent to. Never holds the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AddressProblem {
    /// Nothing there.
    #[error("is empty; give an address such as `name@example.org`")]
    Empty,
    /// CR, LF, NUL or another control character, or an invisible one that reorders or breaks text.
    #[error("has a control or invisible formatting character (perhaps a line break); remove it")]
    Control,
    /// White space before or after it.
    #[error("begins or ends with white space; trim it")]
    Untrimmed,
    /// `Name <address>`, or an address in angle brackets.
    #[error("has a display name or angle brackets; store the name apart and the address alone")]
    DisplayName,
    /// No `@`.
    #[error("has no `@`; give an address such as `name@example.org`")]
    NoAt,
    /// Over [`ADDRESS_MAX_OCTETS`].
    #[error("is longer than {ADDRESS_MAX_OCTETS} octets (RFC 5321, 4.5.3.1.3); give a shorter one")]
    TooLong,
    /// Over [`LOCAL_PART_MAX_OCTETS`].
    #[error("has more than {LOCAL_PART_MAX_OCTETS} octets before the `@` (RFC 5321, 4.5.3.1.1); give a shorter one")]
    LocalPartTooLong,
    /// Neither a dot-atom nor a quoted string.
    #[error("is not well formed before the `@` (RFC 5321, 4.1.2); correct it or quote it")]
    LocalPart,
    /// An IP address in brackets.
    #[error("has an address literal such as `[192.0.2.1]` for a domain, which is not supported; use a domain name")]
    DomainLiteral,
    /// Not a host name, nor convertible into one.
    #[error("has no valid domain name after the `@` (RFC 1035, 2.3.1; RFC 5891 if it is not ASCII); correct it")]
    Domain,
}

impl FromStr for EmailAddress {
    type Err = AddressProblem;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(AddressProblem::Empty);
        }
        if text.chars().any(forbidden) {
            return Err(AddressProblem::Control);
        }
        if text.trim() != text {
            return Err(AddressProblem::Untrimmed);
        }
        if text.ends_with('>') {
            return Err(AddressProblem::DisplayName);
        }
        let (local, domain) = text.rsplit_once('@').ok_or(AddressProblem::NoAt)?;
        if domain.ends_with(']') {
            return Err(AddressProblem::DomainLiteral);
        }
        if text.len() > ADDRESS_MAX_OCTETS {
            return Err(AddressProblem::TooLong);
        }
        if local.len() > LOCAL_PART_MAX_OCTETS {
            return Err(AddressProblem::LocalPartTooLong);
        }
        let spaced = |c: char| !c.is_ascii() && c.is_whitespace();
        if local.contains(spaced) || !email_address::EmailAddress::is_valid_local_part(local) {
            return Err(AddressProblem::LocalPart);
        }
        if domain.is_ascii() {
            if !is_host_name(domain) {
                return Err(AddressProblem::Domain);
            }
            return Ok(Self { stored: text.to_owned(), wire: None });
        }
        let ascii = idna::domain_to_ascii_strict(domain).map_err(|_| AddressProblem::Domain)?;
        if !is_host_name(&ascii) {
            return Err(AddressProblem::Domain);
        }
        let wire = format!("{local}@{ascii}");
        if wire.len() > ADDRESS_MAX_OCTETS {
            return Err(AddressProblem::TooLong);
        }
        Ok(Self { stored: text.to_owned(), wire: Some(wire) })
    }
}

/// Whether `text` is a host name of letters, digits and hyphens (RFC 1035, 2.3.1, as relaxed by RFC 1123, 2.1), without a
/// dot at its end.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=LABEL_MAX_OCTETS).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= DOMAIN_MAX_OCTETS && text.split('.').all(label)
}

/// Control characters, and the invisible ones that make an address read as another: separators, zero-width ones and marks
/// that turn the direction of text. U+200C and U+200D stay: Persian and Indic names are spelled with them (RFC 5892, A.1).
fn forbidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200B}' | '\u{200E}' | '\u{200F}' | '\u{FEFF}')
        || matches!(c, '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}')
}

/// Masked, for logs: `j***@example.org`.
impl fmt::Display for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, domain) = self.wire().rsplit_once('@').unwrap_or_default();
        let mut characters = local.chars();
        // A local part of one character would be told in full.
        if let (Some(first), Some(_)) = (characters.next().filter(|&c| c != '"'), characters.next()) {
            write!(f, "{first}")?;
        }
        write!(f, "***@{domain}")
    }
}

/// Masked like the display form.
impl fmt::Debug for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmailAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EmailAddress, AddressProblem> {
        text.parse()
    }

    #[test]
    fn ascii_addresses_are_the_same_stored_and_on_the_wire() {
        for text in ["a@b", "Jane.Doe+tag@Example.org", "\"a b\"@example.org", "o'neil@xn--bcher-kva.example"] {
            let address = parse(text).unwrap();
            assert_eq!((address.as_str(), address.wire()), (text, text));
            assert!(!address.needs_smtputf8());
        }
    }

    #[test]
    fn a_non_ascii_domain_goes_as_a_labels_and_needs_no_smtputf8() {
        let address = parse("anna@bücher.de").unwrap();
        assert_eq!(address.as_str(), "anna@bücher.de");
        assert_eq!(address.wire(), "anna@xn--bcher-kva.de");
        assert!(!address.needs_smtputf8());
    }

    #[test]
    fn a_non_ascii_local_part_needs_smtputf8_and_still_sends_the_domain_in_a_labels() {
        let address = parse("josé@bücher.de").unwrap();
        assert_eq!(address.wire(), "josé@xn--bcher-kva.de");
        assert!(address.needs_smtputf8());
    }

    #[test]
    fn every_refusal_names_its_problem() {
        let long_local = format!("{}@example.org", "a".repeat(65));
        let long = format!("a@{}.org", vec!["b".repeat(60); 5].join("."));
        let long_label = format!("a@{}.org", "b".repeat(64));
        let long_on_the_wire = format!("{}@{}.de", "a".repeat(60), vec!["ü".repeat(20); 4].join("."));
        for (text, problem) in [
            ("", AddressProblem::Empty),
            ("   ", AddressProblem::Untrimmed),
            (" a@example.org", AddressProblem::Untrimmed),
            ("a@example.org ", AddressProblem::Untrimmed),
            ("a@example.org\r\n", AddressProblem::Control),
            ("a\0@example.org", AddressProblem::Control),
            ("\"a\r\nRCPT TO:<x@evil.example>\"@example.org", AddressProblem::Control),
            ("\"a\nb\"@example.org", AddressProblem::Control),
            ("\"a\\\rb\"@example.org", AddressProblem::Control),
            ("a\u{85}b@example.org", AddressProblem::Control),
            ("a\u{202E}gro@example.org", AddressProblem::Control),
            ("Jane <jane@example.org>", AddressProblem::DisplayName),
            ("<jane@example.org>", AddressProblem::DisplayName),
            ("jane.example.org", AddressProblem::NoAt),
            ("a@[192.0.2.1]", AddressProblem::DomainLiteral),
            ("a@[IPv6:::1]", AddressProblem::DomainLiteral),
            (&long_local, AddressProblem::LocalPartTooLong),
            (&long, AddressProblem::TooLong),
            (&long_label, AddressProblem::Domain),
            ("@example.org", AddressProblem::LocalPart),
            ("a b@example.org", AddressProblem::LocalPart),
            ("a\u{3000}b@example.org", AddressProblem::LocalPart),
            ("a..b@example.org", AddressProblem::LocalPart),
            ("a,b@example.org", AddressProblem::LocalPart),
            ("a@b@example.org", AddressProblem::LocalPart),
            ("\"a@example.org", AddressProblem::LocalPart),
            ("a>RCPT@example.org", AddressProblem::LocalPart),
            ("a@", AddressProblem::Domain),
            ("a@example..org", AddressProblem::Domain),
            ("a@example.org.", AddressProblem::Domain),
            ("a@-example.org", AddressProblem::Domain),
            ("a@exa_mple.org", AddressProblem::Domain),
            ("a@exa mple.org", AddressProblem::Domain),
            ("a@ex>ample.org", AddressProblem::Domain),
            ("a@bü cher.de", AddressProblem::Domain),
            ("a@bü>cher.de", AddressProblem::Domain),
        ] {
            assert_eq!(parse(text), Err(problem), "{text:?}");
        }
        assert!(parse(&long_on_the_wire).is_ok_and(|address| address.wire().len() <= ADDRESS_MAX_OCTETS));
    }

    #[test]
    fn neither_display_nor_debug_reveals_an_address() {
        for (text, shown) in [
            ("jane.doe@example.org", "j***@example.org"),
            ("j@example.org", "***@example.org"),
            ("\"jane doe\"@example.org", "***@example.org"),
            ("éa@bücher.de", "é***@xn--bcher-kva.de"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), format!("EmailAddress({shown})"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_accepted_address_can_break_a_line_or_an_angle_bracket(text in "\\PC{0,20}@?[^@]{0,12}|.*|\"[^@]*\"@example.org") {
            if let Ok(address) = parse(&text) {
                let wire = address.wire();
                proptest::prop_assert!(!wire.chars().any(char::is_control));
                proptest::prop_assert!(wire.len() <= ADDRESS_MAX_OCTETS);
                let quoted = wire.starts_with('"');
                proptest::prop_assert!(quoted || !wire.contains(['<', '>', ' ', ',']));
            }
        }
    }
}
