//! Who may do what in the console, and what of a person's address a viewer sees.

use std::fmt;
use std::str::FromStr;

/// What an operator may do. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// To look: recipients are masked, and content is not shown.
    Viewer,
    /// To see whole addresses and content, and to decide about notifications and replays.
    Operator,
    /// To pause and resume, and to end other operators' sessions, too.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Its name, as the database and the command line have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no role of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a role; give `viewer`, `operator` or `admin`")]
pub struct UnknownRole;

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or(UnknownRole)
    }
}

/// An address of which only the first letter and the domain are told.
#[must_use]
pub fn masked(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((local, domain)) => {
            let first = local.chars().next().map(String::from).unwrap_or_default();
            format!("{first}•••@{domain}")
        }
        None => "•••".to_owned(),
    }
}

/// A text in which every address is masked: servers repeat recipients in their replies.
///
/// An address is what stands around an `@`, also one written as `%40` or `=40`; its local part may be quoted (RFC 5321, 4.1.2).
#[must_use]
pub fn without_addresses(text: &str) -> String {
    let text = text.replace("%40", "@").replace("=40", "@");
    let is_part = |c: char| c.is_alphanumeric() || "!#$%&'*+/=?^_`{|}~.-()\\".contains(c);
    let mut told = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('@') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        let local = match before.strip_suffix('"').and_then(|quoted| quoted.rfind('"')) {
            Some(quote) => &before[quote..],
            None => &before[before.rfind(|c| !is_part(c)).map_or(0, |at| at + last_letter_octets(before, at))..],
        };
        told.push_str(&before[..before.len() - local.len()]);
        told.extend(local.trim_start_matches(['"', '(']).chars().next());
        told.push_str("•••@");
        rest = after;
    }
    told.push_str(rest);
    told
}

/// How many octets the letter at this place has.
fn last_letter_octets(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

/// A text as [`without_addresses`], and also without this recipient's local part where it stands alone, as in `No such user jo`.
#[must_use]
pub fn without_recipient(text: &str, recipient: &str) -> String {
    let local = recipient.rsplit_once('@').map_or(recipient, |(local, _)| local).trim_matches('"');
    let text = without_addresses(text);
    if local.is_empty() {
        return text;
    }
    let is_word = |c: char| c.is_alphanumeric() || "._-+".contains(c);
    let mut told = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((at, length)) = found_in(rest, local) {
        let (before, after) = (&rest[..at], &rest[at + length..]);
        let alone = !before.ends_with(is_word) && !after.trim_start_matches('.').starts_with(is_word);
        told.push_str(before);
        told.push_str(if alone { "•••" } else { &rest[at..at + length] });
        rest = after;
    }
    told.push_str(rest);
    told
}

/// Where a text stands in another in whatever case, and how many octets it has there: letters change their length with their case.
fn found_in(text: &str, sought: &str) -> Option<(usize, usize)> {
    let lower = |text: &str| text.to_lowercase();
    let sought_lower = lower(sought);
    text.char_indices().find_map(|(at, _)| {
        let letters = text[at..].char_indices().nth(sought.chars().count()).map_or(text.len() - at, |(end, _)| end);
        (lower(&text[at..at + letters]) == sought_lower).then_some((at, letters))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_may_what_an_operator_may_who_may_what_a_viewer_may() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert_eq!("root".parse::<Role>(), Err(UnknownRole));
    }

    #[test]
    fn a_viewer_sees_no_address_wherever_it_stands() {
        assert_eq!(masked("jo@example.net"), "j•••@example.net");
        assert_eq!(masked("\"a@b\"@example.net"), "\"•••@example.net");
        assert_eq!(masked("nobody"), "•••");
        assert_eq!(masked(""), "•••");
        for (said, told) in [
            ("550 5.1.1 <jo@example.net>... User unknown", "550 5.1.1 <j•••@example.net>... User unknown"),
            ("to=<jo@a.b>, x", "to=<j•••@a.b>, x"),
            ("\"jo smith\"@example.net is gone", "j•••@example.net is gone"),
            ("jo.smith%40example.net", "j•••@example.net"),
            ("jo.smith=40example.net", "j•••@example.net"),
            ("jo.smith(c)@example.net", "j•••@example.net"),
            ("a@b c@d", "a•••@b c•••@d"),
            ("no address", "no address"),
            ("@", "•••@"),
            ("é@ü.example", "é•••@ü.example"),
            ("日 本@ü.example", "日 本•••@ü.example"),
            ("", ""),
        ] {
            assert_eq!(without_addresses(said), told);
        }
    }

    #[test]
    fn a_recipient_is_not_told_by_the_local_part_alone_either() {
        for (said, told) in [
            ("No such user jo.smith here", "No such user ••• here"),
            ("No such user JO.SMITH.", "No such user •••."),
            ("mailbox 'jo.smith' full, jo.smith@example.net", "mailbox '•••' full, j•••@example.net"),
            ("ajo.smith jo.smithy", "ajo.smith jo.smithy"),
            ("queued as 1", "queued as 1"),
        ] {
            assert_eq!(without_recipient(said, "jo.smith@example.net"), told);
        }
        // Letters that are longer or shorter in lower case, before and in what is sought.
        assert_eq!(without_recipient("x İ jo", "jo@example.net"), "x İ •••");
        assert_eq!(without_recipient("İ: no İX, no ix", "İx@example.net"), "İ: no •••, no ix");
        assert_eq!(without_recipient("x", "@"), "x");
    }
}
