//! What the server took responsibility for: the truth that a sender's records are compared with.
//!
//! A message that was refused or cut must never appear here, and one that was accepted always does, answer or not.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

/// A parameter of MAIL or RCPT: its keyword in upper case and its value (RFC 5321, 4.1.2).
pub type Param = (String, Option<String>);

/// A recipient of an accepted message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    /// The address, without angle brackets.
    pub address: String,
    /// RCPT's parameters.
    pub params: Vec<Param>,
}

/// An accepted message.
#[derive(Debug, Clone)]
pub struct Received {
    /// The notification id: the dedup header's value, or else the local part of `Message-ID`; empty without either.
    pub notification: String,
    /// `Message-ID` without angle brackets; empty if there is none.
    pub message_id: String,
    /// The envelope's sender, without angle brackets.
    pub sender: String,
    /// MAIL's parameters.
    pub params: Vec<Param>,
    /// The envelope's recipients.
    pub recipients: Vec<Recipient>,
    /// The message as it came, dots unstuffed; empty if the server keeps no bodies.
    pub bytes: Arc<[u8]>,
    /// The message's length in bytes.
    pub size: usize,
    /// A hash of the bytes, the same in every run of one build.
    pub hash: u64,
    /// When it was accepted.
    pub at: SystemTime,
    /// The connection that brought it, counted from 1.
    pub connection: u64,
    /// Its queue id, as named in the reply.
    pub queue_id: String,
    /// Whether the client cannot have got a clear `2yz`, as far as the server can see.
    pub answer_lost: bool,
}

impl Received {
    /// The value of a header, unfolded; the first one of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.bytes, name)
    }
}

/// Deduplication as a provider does it: a repeated id inside the window is answered `250` and not delivered again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dedup {
    /// The header that carries the id.
    pub header: String,
    /// How long an id is remembered, from its first acceptance.
    pub window: Duration,
}

/// A message that is about to be accepted.
pub(super) struct Offer {
    pub(super) sender: String,
    pub(super) params: Vec<Param>,
    pub(super) recipients: Vec<Recipient>,
    pub(super) bytes: Vec<u8>,
    pub(super) identity: Identity,
    pub(super) connection: u64,
    pub(super) answer_lost: bool,
}

/// What a message is called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Identity {
    /// See [`Received::notification`].
    pub(super) notification: String,
    /// See [`Received::message_id`].
    pub(super) message_id: String,
    /// The dedup header's value.
    pub(super) key: Option<String>,
}

impl Identity {
    pub(super) fn read(message: &[u8], dedup: Option<&Dedup>) -> Self {
        let message_id = header(message, "Message-ID").unwrap_or_default();
        let message_id = message_id.trim_matches(['<', '>']).to_owned();
        let key = dedup.and_then(|dedup| header(message, &dedup.header)).filter(|key| !key.is_empty());
        let notification = match &key {
            Some(key) => key.clone(),
            None => message_id.rsplit_once('@').map_or(message_id.as_str(), |(local, _)| local).to_owned(),
        };
        Self { notification, message_id, key }
    }
}

/// What became of an [`Offer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    /// The queue id: for a repeat, the first one's.
    pub(super) queue_id: String,
    /// Where it stands in the mailbox; `None` for a repeat.
    pub(super) index: Option<usize>,
}

#[derive(Default)]
struct Memory {
    seen: HashMap<String, (Instant, String)>,
}

impl Memory {
    /// The queue id under which `key` was accepted less than `window` ago.
    fn recall(&self, key: &str, window: Duration, now: Instant) -> Option<String> {
        let (first, queue_id) = self.seen.get(key)?;
        (now.saturating_duration_since(*first) < window).then(|| queue_id.clone())
    }
}

#[derive(Default)]
struct Shelf {
    received: Vec<Received>,
    deliveries: BTreeMap<String, u64>,
    hashes: BTreeMap<String, u64>,
    altered: BTreeSet<String>,
    deduplicated: BTreeMap<String, u64>,
    memory: Memory,
}

/// A cheap handle on what a server has accepted.
#[derive(Clone)]
pub struct Mailbox {
    shelf: Arc<Mutex<Shelf>>,
    changes: watch::Sender<()>,
    dedup: Option<Dedup>,
    keep_bodies: bool,
}

impl Mailbox {
    pub(super) fn new(dedup: Option<Dedup>, keep_bodies: bool) -> Self {
        Self { shelf: Arc::default(), changes: watch::Sender::new(()), dedup, keep_bodies }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shelf) -> T) -> T {
        work(&mut self.shelf.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All accepted messages, in order of acceptance.
    #[must_use]
    pub fn messages(&self) -> Vec<Received> {
        self.with(|shelf| shelf.received.clone())
    }

    /// The accepted messages of one notification, in order.
    #[must_use]
    pub fn of(&self, notification: &str) -> Vec<Received> {
        self.with(|shelf| shelf.received.iter().filter(|one| one.notification == notification).cloned().collect())
    }

    /// How many messages were accepted and delivered; repeats that were deduplicated do not count.
    #[must_use]
    pub fn count(&self) -> usize {
        self.with(|shelf| shelf.received.len())
    }

    /// The notification ids that were delivered at least once.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<String> {
        self.with(|shelf| shelf.deliveries.keys().cloned().collect())
    }

    /// How often a notification was really delivered.
    #[must_use]
    pub fn deliveries(&self, notification: &str) -> u64 {
        self.with(|shelf| shelf.deliveries.get(notification).copied().unwrap_or_default())
    }

    /// The notifications that were delivered more than once, with how often.
    #[must_use]
    pub fn duplicates(&self) -> BTreeMap<String, u64> {
        self.with(|shelf| {
            shelf.deliveries.iter().filter(|(_, count)| **count > 1).map(|(id, count)| (id.clone(), *count)).collect()
        })
    }

    /// The notifications that were accepted more than once, delivered or deduplicated, with bytes that differ.
    #[must_use]
    pub fn altered(&self) -> BTreeSet<String> {
        self.with(|shelf| shelf.altered.clone())
    }

    /// How many repeats were answered `250` and not delivered.
    #[must_use]
    pub fn deduplicated(&self) -> u64 {
        self.with(|shelf| shelf.deduplicated.values().sum())
    }

    /// How many repeats of one notification were answered `250` and not delivered.
    #[must_use]
    pub fn deduplicated_of(&self, notification: &str) -> u64 {
        self.with(|shelf| shelf.deduplicated.get(notification).copied().unwrap_or_default())
    }

    /// How many accepted messages lost their answer.
    #[must_use]
    pub fn answers_lost(&self) -> usize {
        self.with(|shelf| shelf.received.iter().filter(|one| one.answer_lost).count())
    }

    /// Makes the server forget every id that it deduplicates on, as when the window of all is over.
    pub fn forget_ids(&self) {
        self.with(|shelf| shelf.memory.seen.clear());
    }

    /// Waits until `condition` holds; it is asked at once and after every change.
    pub async fn wait_for(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition(self) {
            // The sender lives in `self`, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Waits until at least `count` messages were delivered.
    pub async fn wait_for_count(&self, count: usize) {
        self.wait_for(|mailbox| mailbox.count() >= count).await;
    }

    pub(super) fn identity(&self, message: &[u8]) -> Identity {
        Identity::read(message, self.dedup.as_ref())
    }

    pub(super) fn accept(&self, offer: Offer) -> Kept {
        let mut hasher = DefaultHasher::new();
        hasher.write(&offer.bytes);
        let hash = hasher.finish();
        let size = offer.bytes.len();
        let bytes: Arc<[u8]> = if self.keep_bodies { offer.bytes.into() } else { Arc::default() };
        let now = Instant::now();
        let kept = self.with(|shelf| {
            let Identity { notification, message_id, key } = offer.identity;
            if *shelf.hashes.entry(notification.clone()).or_insert(hash) != hash {
                shelf.altered.insert(notification.clone());
            }
            let key = key.and_then(|key| self.dedup.as_ref().map(|dedup| (key, dedup.window)));
            if let Some((key, window)) = &key
                && let Some(queue_id) = shelf.memory.recall(key, *window, now)
            {
                *shelf.deduplicated.entry(notification).or_default() += 1;
                return Kept { queue_id, index: None };
            }
            let index = shelf.received.len();
            let queue_id = format!("S{:06}", index + 1);
            if let Some((key, _)) = key {
                shelf.memory.seen.insert(key, (now, queue_id.clone()));
            }
            *shelf.deliveries.entry(notification.clone()).or_default() += 1;
            shelf.received.push(Received {
                notification,
                message_id,
                sender: offer.sender,
                params: offer.params,
                recipients: offer.recipients,
                bytes,
                size,
                hash,
                at: SystemTime::now(),
                connection: offer.connection,
                queue_id: queue_id.clone(),
                answer_lost: offer.answer_lost,
            });
            Kept { queue_id, index: Some(index) }
        });
        self.changes.send_replace(());
        kept
    }

    pub(super) fn mark_answer_lost(&self, index: usize) {
        self.with(|shelf| {
            if let Some(received) = shelf.received.get_mut(index) {
                received.answer_lost = true;
            }
        });
        self.changes.send_replace(());
    }
}

/// The value of the first header of this name, unfolded (RFC 5322, 2.2.3) and trimmed.
fn header(message: &[u8], name: &str) -> Option<String> {
    let mut found: Option<String> = None;
    for line in message.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let folded = line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t'));
        match &mut found {
            Some(value) if folded => value.push_str(&String::from_utf8_lossy(line)),
            Some(_) => break,
            None if line.is_empty() => break,
            None if folded => {}
            None => {
                let colon = line.iter().position(|&byte| byte == b':');
                if let Some(colon) = colon.filter(|&colon| line[..colon].eq_ignore_ascii_case(name.as_bytes())) {
                    found = Some(String::from_utf8_lossy(&line[colon + 1..]).into_owned());
                }
            }
        }
    }
    found.map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &[u8] =
        b"From: a@example.com\r\nX-Notification-ID:\r\n n-1\r\nmessage-id: <m-1@example.com>\r\n\r\n\
        X-Other: in the body\r\n";

    fn dedup(window: Duration) -> Dedup {
        Dedup { header: "X-Notification-ID".to_owned(), window }
    }

    fn offer(mailbox: &Mailbox, bytes: &[u8]) -> Kept {
        mailbox.accept(Offer {
            sender: String::new(),
            params: Vec::new(),
            recipients: Vec::new(),
            bytes: bytes.to_vec(),
            identity: mailbox.identity(bytes),
            connection: 1,
            answer_lost: false,
        })
    }

    #[test]
    fn headers_are_unfolded_and_end_with_the_first_empty_line() {
        assert_eq!(header(MESSAGE, "x-notification-id").as_deref(), Some("n-1"));
        assert_eq!(header(MESSAGE, "Message-ID").as_deref(), Some("<m-1@example.com>"));
        assert_eq!(header(MESSAGE, "X-Other"), None);
    }

    #[test]
    fn a_message_is_called_by_its_dedup_header_or_else_by_its_message_id() {
        let named = Identity::read(MESSAGE, Some(&dedup(Duration::ZERO)));
        assert_eq!((named.notification.as_str(), named.key.as_deref()), ("n-1", Some("n-1")));
        let unnamed = Identity::read(MESSAGE, None);
        assert_eq!((unnamed.notification.as_str(), unnamed.key), ("m-1", None));
    }

    #[test]
    fn an_id_is_remembered_for_its_window_and_not_longer() {
        let mut memory = Memory::default();
        let first = Instant::now();
        let window = Duration::from_secs(10);
        memory.seen.insert("n-1".to_owned(), (first, "S000001".to_owned()));
        assert_eq!(memory.recall("n-1", window, first + Duration::from_millis(9_999)).as_deref(), Some("S000001"));
        assert_eq!(memory.recall("n-1", window, first + window), None);
        assert_eq!(memory.recall("n-2", window, first), None);
    }

    #[test]
    fn a_repeat_inside_the_window_is_answered_as_before_and_not_delivered() {
        let mailbox = Mailbox::new(Some(dedup(Duration::from_secs(3_600))), true);
        let first = offer(&mailbox, MESSAGE);
        let again = offer(&mailbox, MESSAGE);
        assert_eq!((first.index, again.index), (Some(0), None));
        assert_eq!(first.queue_id, again.queue_id);
        assert_eq!((mailbox.count(), mailbox.deliveries("n-1"), mailbox.deduplicated_of("n-1")), (1, 1, 1));
        assert!(mailbox.duplicates().is_empty() && mailbox.altered().is_empty());
    }

    #[test]
    fn a_repeat_after_the_window_or_without_dedup_is_a_duplicate() {
        for (mailbox, id) in
            [(Mailbox::new(Some(dedup(Duration::ZERO)), true), "n-1"), (Mailbox::new(None, true), "m-1")]
        {
            offer(&mailbox, MESSAGE);
            offer(&mailbox, MESSAGE);
            assert_eq!(mailbox.duplicates(), BTreeMap::from([(id.to_owned(), 2)]));
            assert_eq!(mailbox.ids(), BTreeSet::from([id.to_owned()]));
            assert_eq!(mailbox.deduplicated(), 0);
        }
    }

    #[test]
    fn a_repeat_with_other_bytes_is_noticed_even_where_it_is_deduplicated_and_no_bodies_are_kept() {
        let mailbox = Mailbox::new(Some(dedup(Duration::from_secs(3_600))), false);
        offer(&mailbox, MESSAGE);
        offer(&mailbox, &[MESSAGE, b"more\r\n"].concat());
        assert_eq!(mailbox.altered(), BTreeSet::from(["n-1".to_owned()]));
        assert!(mailbox.messages()[0].bytes.is_empty() && mailbox.messages()[0].size == MESSAGE.len());
    }
}
