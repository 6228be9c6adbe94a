//! The delay that a refusal asks for, read out of its free text. A guess only in one direction: no delay is made up.

use std::time::Duration;

use super::reply::Severity;
use crate::domain::outcome::Reply;

/// How long a 4yz asks to wait: "try again in 120 seconds", "retry after 5 minutes", "greylisted for 300 seconds",
/// "come back in 00:05:00". `None` where it names no time, or names one that is not about trying again.
#[must_use]
pub fn stated_delay(reply: &Reply) -> Option<Duration> {
    if Severity::of(reply.code) != Severity::Transient {
        return None;
    }
    let text = reply.text.to_ascii_lowercase();
    if !["again", "retry", "greylist", "graylist", "come back", "wait"].iter().any(|word| text.contains(word)) {
        return None;
    }
    let words: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != ':').map(|word| word.trim_matches(':')).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let before = |back: usize| at.checked_sub(back).and_then(|index| words.get(index)).copied().unwrap_or_default();
        let leads = ["in", "for", "after", "wait", "least", "about"];
        if !leads.contains(&before(1)) {
            return None;
        }
        if let Some(clock) = clock_time(word) {
            return Some(clock);
        }
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        let (number, attached) = word.split_at_checked(digits)?;
        let number: u64 = number.parse().ok()?;
        let unit = if attached.is_empty() { words.get(at + 1).copied().unwrap_or_default() } else { attached };
        let seconds = match unit {
            "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
            // As the HTTP header of this name has it.
            _ if attached.is_empty() && before(2) == "retry" && before(1) == "after" => 1,
            _ => return None,
        };
        number.checked_mul(seconds).map(Duration::from_secs)
    })
}

/// `hh:mm:ss`, as milter-greylist says it.
fn clock_time(word: &str) -> Option<Duration> {
    let mut parts = word.split(':').map(|part| part.parse::<u32>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let total = u64::from(hours) * 3600 + u64::from(minutes) * 60 + u64::from(seconds);
    parts.next().is_none().then(|| Duration::from_secs(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(line: &str) -> Reply {
        let (code, text) = line.split_once(' ').unwrap();
        Reply { code: code.parse().unwrap(), enhanced: None, text: text.to_owned() }
    }

    #[test]
    fn a_delay_that_the_server_states_is_understood() {
        for (line, seconds) in [
            ("450 4.7.1 try again in 120 seconds", 120),
            ("451 please retry after 5 minutes.", 300),
            ("450 4.2.0 <a@b>: Recipient address rejected: Greylisted for 300 seconds", 300),
            ("451 4.7.1 Greylisting in action, please come back in 00:05:30", 330),
            ("421 Too many connections, try again in 1 hour", 3600),
            ("450 try again in 90s", 90),
            ("450 Retry-After: 45", 45),
            ("450 wait 10 min and try again", 600),
            ("452 10 messages in an hour; wait at least 2 hours", 7200),
        ] {
            assert_eq!(stated_delay(&reply(line)), Some(Duration::from_secs(seconds)), "{line}");
        }
    }

    #[test]
    fn a_number_that_is_not_about_trying_again_is_no_delay() {
        for line in [
            "450 4.7.1 try again later",
            "450 limit of 100 per 60 seconds reached, try again later",
            "450 connection idle for 300 seconds",
            "451 4.3.0 queue id 12345, try again",
            "450 try again in 99999999999999999999 seconds",
            "450 try again in 18446744073709551615 hours",
            "450 try again in 5 parsecs",
            "550 try again in 120 seconds",
            "250 try again in 120 seconds",
        ] {
            assert_eq!(stated_delay(&reply(line)), None, "{line}");
        }
    }
}
