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
#[must_use]
pub fn without_addresses(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "!#$%&'*+/=?^_`{|}~.-@".contains(c);
    let mut told = String::with_capacity(text.len());
    let mut word = String::new();
    for letter in text.chars().map(Some).chain([None]) {
        match letter {
            Some(letter) if is_part(letter) => word.push(letter),
            other => {
                told.push_str(&if word.contains('@') { masked(&word) } else { std::mem::take(&mut word) });
                word.clear();
                told.extend(other);
            }
        }
    }
    told
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
            ("relay=mx, to=jo@a.b, x", "relay=mx, to=•••, x"),
            ("no address", "no address"),
            ("@", "•••@"),
            ("é@ü.example", "é•••@ü.example"),
        ] {
            let hidden = without_addresses(said);
            assert!(!hidden.contains("jo@"), "{hidden}");
            if !said.contains("to=") {
                assert_eq!(hidden, told);
            }
        }
    }
}
