//! Following mail through a server's log: whose queue id is whose, and what time a line tells. Bounded in memory.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

use crate::domain::evidence::Proof;
use crate::domain::ids::NotificationId;

/// Queue ids that are followed at once. A mail's lines lie close together unless it is deferred for days; what is pushed out is
/// counted.
const OPEN_MAX: usize = 200_000;

/// What is kept of a server's words, in characters.
const WORDS_MAX_CHARS: usize = 500;

/// What a line proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The notification.
    pub id: NotificationId,
    /// What is proved.
    pub proof: Proof,
    /// Whether for good.
    pub for_good: bool,
    /// The server's queue id.
    pub queue_id: String,
    /// When, by the log.
    pub at: Option<OffsetDateTime>,
    /// The server's own words.
    pub words: String,
}

/// A queue id that is one of ours.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Followed {
    pub(super) id: NotificationId,
    /// Whether its acceptance was seen.
    pub(super) accepted: bool,
}

/// The queue ids of one server's log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Open {
    ids: HashMap<String, Followed>,
    order: VecDeque<String>,
    #[serde(skip)]
    pub(super) forgotten: u64,
}

impl Open {
    pub(super) fn follow(&mut self, queue_id: &str, id: NotificationId, accepted: bool) {
        if self.order.len() >= OPEN_MAX
            && let Some(oldest) = self.order.pop_front()
            && self.ids.remove(&oldest).is_some()
        {
            self.forgotten += 1;
        }
        self.ids.insert(queue_id.to_owned(), Followed { id, accepted });
        self.order.push_back(queue_id.to_owned());
    }

    pub(super) fn forget(&mut self, queue_id: &str) {
        self.ids.remove(queue_id);
    }

    pub(super) fn get_mut(&mut self, queue_id: &str) -> Option<&mut Followed> {
        self.ids.get_mut(queue_id)
    }
}

/// What a line found says of a followed mail.
pub(super) fn found(
    followed: Followed,
    queue_id: &str,
    at: Option<OffsetDateTime>,
    proof: Proof,
    words: &str,
) -> Option<Found> {
    Some(Found {
        id: followed.id,
        proof,
        for_good: proof == Proof::Bounced,
        queue_id: queue_id.to_owned(),
        at,
        // A NUL cannot be stored, and nothing else of the kind be shown.
        words: words.chars().map(|c| if c.is_control() { '?' } else { c }).take(WORDS_MAX_CHARS).collect(),
    })
}

/// How the times of a log are to be read, and which it told.
#[derive(Debug, Clone)]
pub struct Clock {
    offset: UtcOffset,
    pub(super) now: OffsetDateTime,
    /// The first and the last time that a line told.
    pub range: Option<(OffsetDateTime, OffsetDateTime)>,
}

impl Clock {
    /// Times without an offset are taken to be at `offset`, and those without a year to be the last such time before `now`.
    #[must_use]
    pub fn new(offset: UtcOffset, now: OffsetDateTime) -> Self {
        Self { offset, now, range: None }
    }

    /// Reads a time and widens the range by it.
    pub(super) fn read(&mut self, text: &str) -> Option<OffsetDateTime> {
        let at = self.time(text)?;
        let (first, last) = self.range.unwrap_or((at, at));
        self.range = Some((first.min(at), last.max(at)));
        Some(at)
    }

    pub(super) fn time(&self, text: &str) -> Option<OffsetDateTime> {
        if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
            return Some(time);
        }
        self.of_exim(text).or_else(|| self.of_syslog(text))
    }

    /// `2026-12-01 10:00:00`, with milliseconds and an offset where Exim is told to write them.
    fn of_exim(&self, text: &str) -> Option<OffsetDateTime> {
        let mut parts = text.split_ascii_whitespace();
        let date = Date::parse(parts.next()?, format_description!("[year]-[month]-[day]")).ok()?;
        let clock = parts.next()?;
        let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
        let clock = Time::parse(clock, format_description!("[hour]:[minute]:[second]")).ok()?;
        let offset = match parts.next() {
            Some(offset) => {
                UtcOffset::parse(offset, format_description!("[offset_hour sign:mandatory][offset_minute]")).ok()?
            }
            None => self.offset,
        };
        Some(PrimitiveDateTime::new(date, clock).assume_offset(offset))
    }

    /// `Dec  1 10:00:00` (RFC 3164, 4.1.2), without year and offset.
    fn of_syslog(&self, text: &str) -> Option<OffsetDateTime> {
        let mut parts = text.split_ascii_whitespace();
        let (month, day, clock) = (parts.next()?, parts.next()?, parts.next()?);
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let month = u8::try_from(months.iter().position(|name| *name == month)? + 1).ok()?;
        let clock = Time::parse(clock, format_description!("[hour]:[minute]:[second]")).ok()?;
        let day = day.parse().ok()?;
        // A day of slack, for a clock that is ahead.
        let latest = self.now + time::Duration::DAY;
        [self.now.year(), self.now.year() - 1].into_iter().find_map(|year| {
            let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
            Some(PrimitiveDateTime::new(date, clock).assume_offset(self.offset)).filter(|time| *time <= latest)
        })
    }
}

/// The id in a Message-ID of this domain, without angle brackets.
pub(super) fn id_of(message_id: &str, domain: &str) -> Option<NotificationId> {
    message_id.strip_suffix(domain)?.strip_suffix('@')?.parse().ok()
}
