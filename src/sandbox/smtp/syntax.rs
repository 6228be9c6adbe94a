//! The grammar of commands (RFC 5321, 4.1), as strict as it is written. Pure: a line in, a [`Command`] or a [`Refusal`] out.

use super::mailbox::Param;

/// A command line, CRLF included (RFC 5321, 4.5.3.1.4).
const COMMAND_MAX_BYTES: usize = 512;
/// MAIL with SIZE, BODY, SMTPUTF8 and DSN (26 + 17 + 10 octets, and RFC 3461's ENVID) or RCPT with DSN (500 octets).
const EXTENDED_COMMAND_MAX_BYTES: usize = 1_024;
/// An AUTH command with an initial response (RFC 4954, 4).
const AUTH_MAX_BYTES: usize = 12_288;
/// RFC 5321, 4.5.3.1.1.
const LOCAL_PART_MAX_BYTES: usize = 64;
/// RFC 5321, 4.5.3.1.2.
const DOMAIN_MAX_BYTES: usize = 255;
/// A path without its angle brackets (RFC 5321, 4.5.3.1.3).
const PATH_MAX_BYTES: usize = 254;

/// Which parameters are in force.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Grammar {
    pub(super) size: Option<u64>,
    pub(super) eight_bit_mime: bool,
    pub(super) smtputf8: bool,
    pub(super) dsn: bool,
    pub(super) auth: bool,
    /// Whether the transaction under way began with SMTPUTF8, so that RCPT may hold UTF-8.
    pub(super) in_utf8: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Ehlo,
    Helo,
    StartTls,
    Auth { mechanism: String, initial: Option<String> },
    Mail { sender: String, params: Vec<Param>, utf8: bool, eight_bit: bool },
    Rcpt { recipient: String, params: Vec<Param> },
    Data,
    Rset,
    Quit,
    Noop,
    Vrfy,
    Help,
    Unknown,
}

impl Command {
    /// Whether it must be the last of a pipelined group (RFC 2920, 3.1).
    pub(super) fn ends_group(&self) -> bool {
        match self {
            Self::Mail { .. } | Self::Rcpt { .. } | Self::Rset => false,
            Self::Ehlo
            | Self::Helo
            | Self::StartTls
            | Self::Auth { .. }
            | Self::Data
            | Self::Quit
            | Self::Noop
            | Self::Vrfy
            | Self::Help
            | Self::Unknown => true,
        }
    }
}

/// Why a line is no legal command, and the reply to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) enhanced: &'static str,
    pub(super) text: &'static str,
    /// Whether the client broke the protocol, or is merely refused.
    pub(super) violation: bool,
}

const fn broken(code: u16, enhanced: &'static str, text: &'static str) -> Refusal {
    Refusal { code, enhanced, text, violation: true }
}

const fn syntax(text: &'static str) -> Refusal {
    broken(501, "5.5.4", text)
}

pub(super) fn parse(line: &[u8], grammar: Grammar) -> Result<Command, Refusal> {
    let Ok(line) = std::str::from_utf8(line) else {
        return Err(broken(500, "5.5.2", "command is not UTF-8"));
    };
    if line.chars().any(|c| c.is_ascii_control()) {
        return Err(broken(500, "5.5.2", "control character in command"));
    }
    let (verb, rest) = match line.split_once(' ') {
        Some((verb, rest)) => (verb, Some(rest)),
        None => (line, None),
    };
    let verb = verb.to_ascii_uppercase();
    let max = match verb.as_str() {
        "MAIL" | "RCPT" => EXTENDED_COMMAND_MAX_BYTES,
        "AUTH" => AUTH_MAX_BYTES,
        _ => COMMAND_MAX_BYTES,
    };
    if line.len() + 2 > max {
        return Err(broken(500, "5.5.2", "command line too long"));
    }
    if line.ends_with(' ') {
        return Err(syntax("trailing white space"));
    }
    let bare = |command: Command| match rest {
        None => Ok(command),
        Some(_) => Err(syntax("this command takes no parameters")),
    };
    match verb.as_str() {
        "EHLO" if rest.is_some_and(is_client_domain) => Ok(Command::Ehlo),
        "HELO" if rest.is_some_and(is_client_domain) => Ok(Command::Helo),
        "EHLO" | "HELO" => Err(syntax("a domain or an address literal is wanted")),
        "STARTTLS" => bare(Command::StartTls),
        "AUTH" => auth(rest.unwrap_or_default()),
        "MAIL" => mail(rest.unwrap_or_default(), grammar),
        "RCPT" => rcpt(rest.unwrap_or_default(), grammar),
        "DATA" => bare(Command::Data),
        "RSET" => bare(Command::Rset),
        "QUIT" => bare(Command::Quit),
        "NOOP" => Ok(Command::Noop),
        "VRFY" | "EXPN" if rest.is_some() => Ok(Command::Vrfy),
        "VRFY" | "EXPN" => Err(syntax("a string is wanted")),
        "HELP" => Ok(Command::Help),
        _ => Ok(Command::Unknown),
    }
}

fn auth(rest: &str) -> Result<Command, Refusal> {
    let (mechanism, initial) = match rest.split_once(' ') {
        Some((mechanism, initial)) => (mechanism, Some(initial)),
        None => (rest, None),
    };
    // RFC 4422, 3.1: up to 20 upper-case letters, digits, hyphens and underscores.
    if mechanism.is_empty() || initial.is_some_and(|initial| initial.is_empty() || initial.contains(' ')) {
        return Err(syntax("AUTH mechanism [initial-response]"));
    }
    Ok(Command::Auth { mechanism: mechanism.to_ascii_uppercase(), initial: initial.map(ToOwned::to_owned) })
}

fn mail(rest: &str, grammar: Grammar) -> Result<Command, Refusal> {
    let (sender, params) = path(rest, "FROM:").ok_or(syntax("MAIL FROM:<path> [parameters]"))?;
    let (mut utf8, mut eight_bit) = (false, false);
    for (keyword, value) in &params {
        match (keyword.as_str(), value.as_deref()) {
            ("SIZE", Some(value)) if grammar.size.is_some() => {
                let limit = grammar.size.unwrap_or_default();
                if value.len() > 20 || !value.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(syntax("SIZE takes up to 20 digits"));
                }
                // RFC 1870, 4: a limit of 0 stands for none.
                if limit > 0 && value.parse::<u64>().is_ok_and(|size| size > limit) {
                    return Err(Refusal {
                        code: 552,
                        enhanced: "5.3.4",
                        text: "message size exceeds the limit",
                        violation: false,
                    });
                }
            }
            ("BODY", Some(value)) if grammar.eight_bit_mime => match value.to_ascii_uppercase().as_str() {
                "7BIT" => {}
                "8BITMIME" => eight_bit = true,
                _ => return Err(syntax("BODY takes 7BIT or 8BITMIME")),
            },
            ("SMTPUTF8", None) if grammar.smtputf8 => utf8 = true,
            ("AUTH", Some(_)) if grammar.auth => {}
            ("RET", Some(value)) if grammar.dsn => {
                if !value.eq_ignore_ascii_case("FULL") && !value.eq_ignore_ascii_case("HDRS") {
                    return Err(syntax("RET takes FULL or HDRS"));
                }
            }
            ("ENVID", Some(value)) if grammar.dsn => {
                if value.len() > 100 {
                    return Err(syntax("ENVID takes up to 100 characters"));
                }
            }
            _ => return Err(broken(555, "5.5.4", "MAIL parameter not offered or without its value")),
        }
    }
    if !sender.is_empty() {
        address(&sender, utf8)?;
    }
    Ok(Command::Mail { sender, params, utf8, eight_bit })
}

fn rcpt(rest: &str, grammar: Grammar) -> Result<Command, Refusal> {
    let (recipient, params) = path(rest, "TO:").ok_or(syntax("RCPT TO:<path> [parameters]"))?;
    for (keyword, value) in &params {
        match (keyword.as_str(), value) {
            ("NOTIFY" | "ORCPT", Some(_)) if grammar.dsn => {}
            _ => return Err(broken(555, "5.5.4", "RCPT parameter not offered or without its value")),
        }
    }
    // RFC 5321, 4.1.1.3: the one address without a domain.
    if !recipient.eq_ignore_ascii_case("postmaster") {
        address(&recipient, grammar.in_utf8)?;
    }
    Ok(Command::Rcpt { recipient, params })
}

/// Splits `FROM:<path> KEY=value` into the path and its parameters; nothing may stand between colon and path.
fn path(rest: &str, prefix: &str) -> Option<(String, Vec<Param>)> {
    let found = rest.get(..prefix.len())?;
    let rest = rest[prefix.len()..].strip_prefix('<').filter(|_| found.eq_ignore_ascii_case(prefix))?;
    let mut quoted = false;
    let mut escaped = false;
    let end = rest.char_indices().find_map(|(at, c)| {
        match (c, quoted, escaped) {
            ('>', false, _) => return Some(at),
            ('\\', true, false) => escaped = true,
            ('"', _, false) => quoted = !quoted,
            _ => escaped = false,
        }
        None
    })?;
    let (path, rest) = (&rest[..end], &rest[end + 1..]);
    if rest.is_empty() {
        return Some((path.to_owned(), Vec::new()));
    }
    let mut params: Vec<Param> = Vec::new();
    for param in rest.strip_prefix(' ')?.split(' ') {
        let (keyword, value) = match param.split_once('=') {
            Some((keyword, value)) => (keyword, Some(value)),
            None => (param, None),
        };
        let good_keyword = keyword.starts_with(|c: char| c.is_ascii_alphanumeric())
            && keyword.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        let good_value = value.is_none_or(|value| !value.is_empty() && !value.contains('='));
        let keyword = keyword.to_ascii_uppercase();
        if !good_keyword || !good_value || params.iter().any(|(known, _)| *known == keyword) {
            return None;
        }
        params.push((keyword, value.map(ToOwned::to_owned)));
    }
    Some((path.to_owned(), params))
}

fn address(address: &str, utf8: bool) -> Result<(), Refusal> {
    if !utf8 && !address.is_ascii() {
        return Err(broken(553, "5.6.7", "non-ASCII address without SMTPUTF8"));
    }
    let (local, domain) = address.rsplit_once('@').ok_or(broken(553, "5.1.3", "address without a domain"))?;
    if address.len() > PATH_MAX_BYTES || local.len() > LOCAL_PART_MAX_BYTES || domain.len() > DOMAIN_MAX_BYTES {
        return Err(broken(501, "5.1.3", "address too long"));
    }
    if !is_local_part(local) || !is_domain(domain) {
        return Err(broken(553, "5.1.3", "malformed address"));
    }
    Ok(())
}

fn is_local_part(local: &str) -> bool {
    if let Some(inner) = local.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        let mut escaped = false;
        for c in inner.chars() {
            match c {
                '\\' | '"' if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => return false,
                _ => escaped = false,
            }
        }
        return !escaped;
    }
    let is_atext = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    local.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atext))
}

fn is_domain(domain: &str) -> bool {
    if let Some(literal) = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match literal.split_at_checked(5) {
            Some((tag, v6)) if tag.eq_ignore_ascii_case("IPv6:") => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            Some(_) | None => literal.parse::<std::net::Ipv4Addr>().is_ok(),
        };
    }
    domain.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || !c.is_ascii())
    })
}

fn is_client_domain(name: &str) -> bool {
    name.is_ascii() && name.len() <= DOMAIN_MAX_BYTES && is_domain(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Grammar =
        Grammar { size: Some(1_000), eight_bit_mime: true, smtputf8: true, dsn: true, auth: true, in_utf8: false };

    fn code(line: &str, grammar: Grammar) -> u16 {
        parse(line.as_bytes(), grammar).map_or_else(|refusal| refusal.code, |_| 250)
    }

    #[test]
    fn legal_commands_are_read() {
        for line in [
            "EHLO client.example",
            "ehlo [127.0.0.1]",
            "EHLO [IPv6:::1]",
            "HELO localhost",
            "MAIL FROM:<>",
            "mail from:<a.b+c@example.com>",
            "MAIL FROM:<\"a >b\\\"\"@example.com> SIZE=1000 BODY=8BITMIME SMTPUTF8",
            "MAIL FROM:<a@[10.0.0.1]> RET=HDRS ENVID=n-1",
            "MAIL FROM:<\u{e9}@ex\u{e9}mple.com> SMTPUTF8",
            "RCPT TO:<postmaster>",
            "RCPT TO:<b@example.com> NOTIFY=NEVER",
            "DATA",
            "RSET",
            "QUIT",
            "NOOP ping",
            "VRFY b",
            "AUTH PLAIN",
            "AUTH PLAIN =",
        ] {
            assert_eq!(code(line, ALL), 250, "{line}");
        }
    }

    #[test]
    fn illegal_commands_are_refused() {
        for (line, expected) in [
            ("EHLO", 501),
            ("EHLO a b", 501),
            ("EHLO under_score", 501),
            ("MAIL FROM: <a@example.com>", 501),
            ("MAIL FROM:a@example.com", 501),
            ("MAIL FROM:<a@example.com", 501),
            ("MAIL FROM:<a@example.com>SIZE=1", 501),
            ("MAIL FROM:<a@example.com>  SIZE=1", 501),
            ("MAIL FROM:<a@example.com> ", 501),
            ("MAIL FROM:<a@example.com> SIZE=x", 501),
            ("MAIL FROM:<a@example.com> SIZE=", 501),
            ("MAIL FROM:<a@example.com> SIZE=1 SIZE=1", 501),
            ("MAIL FROM:<a@example.com> BODY=9BIT", 501),
            ("MAIL FROM:<a@example.com> SMTPUTF8=yes", 555),
            ("MAIL FROM:<a@example.com> FOO=1", 555),
            ("MAIL FROM:<a>", 553),
            ("MAIL FROM:<a..b@example.com>", 553),
            ("MAIL FROM:<a b@example.com>", 553),
            ("MAIL FROM:<a@-example.com>", 553),
            ("MAIL FROM:<a@[example]>", 553),
            ("MAIL FROM:<\u{e9}@example.com>", 553),
            ("RCPT TO:<\u{e9}@example.com>", 553),
            ("RCPT TO:<>", 553),
            ("RCPT FROM:<b@example.com>", 501),
            ("DATA now", 501),
            ("QUIT now", 501),
            ("MAIL\tFROM:<a@example.com>", 500),
        ] {
            assert_eq!(code(line, ALL), expected, "{line}");
        }
    }

    #[test]
    fn a_parameter_that_was_not_offered_is_refused() {
        for line in [
            "MAIL FROM:<a@example.com> SIZE=1",
            "MAIL FROM:<a@example.com> BODY=7BIT",
            "MAIL FROM:<a@example.com> SMTPUTF8",
            "MAIL FROM:<a@example.com> ENVID=n-1",
            "RCPT TO:<b@example.com> NOTIFY=NEVER",
        ] {
            assert_eq!(code(line, Grammar::default()), 555, "{line}");
        }
    }

    #[test]
    fn a_size_over_the_limit_is_refused_without_being_a_violation() {
        let refusal = parse(b"MAIL FROM:<a@example.com> SIZE=1001", ALL).unwrap_err();
        assert!(refusal.code == 552 && !refusal.violation);
        let no_limit = Grammar { size: Some(0), ..ALL };
        assert_eq!(code("MAIL FROM:<a@example.com> SIZE=1001", no_limit), 250);
    }

    #[test]
    fn lengths_are_limited() {
        let local = |length: usize| format!("RCPT TO:<{}@example.com>", "x".repeat(length));
        assert_eq!((code(&local(64), ALL), code(&local(65), ALL)), (250, 501));
        let noop = |length: usize| format!("NOOP {}", "x".repeat(length - 7));
        assert_eq!((code(&noop(512), ALL), code(&noop(513), ALL)), (250, 500));
    }
}
