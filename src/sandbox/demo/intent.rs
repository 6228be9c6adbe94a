//! What the demo's shop wants to store, and what goes wrong while it does: drawn once from the seed, before anything runs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::weather::ALBUM;
use crate::store::enqueue::{NewAttachment, NewNotification};

/// The account with the big backlog.
pub(super) const NEWSLETTER: &str = "newsletter";

/// The other accounts.
const ACCOUNTS: [&str; 5] = ["acme", "globex", "hooli", "initech", "umbrella"];

/// Of a hundred messages so many are the newsletter's, and so many the sale's.
const NEWSLETTER_SHARE: usize = 30;
const SALE_SHARE: usize = 20;

/// A picture in an album: 400 kB, more than the kernel takes at once.
const PICTURE_BYTES: usize = 400_000;

/// When a message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// One after the other, all along.
    Steady,
    /// All at once: one account's big backlog.
    Newsletter,
    /// All at once, of all accounts.
    Sale,
}

/// How the writing of a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// It commits.
    Commit,
    /// The shop changes its mind and rolls back.
    RollBack,
    /// The connection dies before the commit, and the shop gives up.
    Crash,
    /// The connection dies before the commit, and the shop tries again.
    CrashAndRetry,
    /// The commit is sent, its answer is lost, and the shop tries again with the same keys.
    LoseCommit,
}

impl Fate {
    fn draw(draws: &mut StdRng) -> Self {
        match draws.random_range(0..100) {
            0..4 => Self::RollBack,
            4..6 => Self::Crash,
            6..8 => Self::CrashAndRetry,
            8..12 => Self::LoseCommit,
            _ => Self::Commit,
        }
    }
}

/// One message to be written.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    /// Made once, before the first try.
    pub(super) key: String,
    /// Whose it is.
    pub(super) account: &'static str,
    /// The route of its notifications.
    route: &'static str,
    /// Who is to be told.
    recipients: Vec<String>,
    /// What goes wrong.
    pub(super) fate: Fate,
    /// When it is written.
    pub(super) part: Part,
}

impl Intent {
    /// How many notifications it has.
    pub(super) fn notifications(&self) -> usize {
        self.recipients.len()
    }

    /// What to enqueue with it.
    pub(super) fn enqueues(&self) -> impl Iterator<Item = NewNotification> + '_ {
        self.recipients.iter().enumerate().map(|(number, recipient)| NewNotification {
            account_id: self.account.to_owned(),
            sender: "shop@shop.example".to_owned(),
            recipient: recipient.clone(),
            subject: format!("Message {}", self.key),
            body_text: Some(format!("Good news about {}.\n\n.A line that begins with a dot.\n", self.key)),
            attachments: if recipient.starts_with(ALBUM) { vec![picture()] } else { Vec::new() },
            route: Some(self.route.to_owned()),
            dedup_key: Some(format!("{}/{number}", self.key)),
            message_ref: Some(self.key.clone()),
            ..NewNotification::default()
        })
    }
}

fn picture() -> NewAttachment {
    NewAttachment {
        filename: "picture.png".to_owned(),
        content_type: "image/png".to_owned(),
        content: BASE64_STANDARD.encode(vec![7; PICTURE_BYTES]),
    }
}

/// All that is to be written.
pub(super) fn plan(seed: u64, messages: usize) -> Vec<Intent> {
    let mut draws = StdRng::seed_from_u64(seed);
    (0..messages)
        .map(|number| {
            let part = match number * 100 / messages {
                place if place < NEWSLETTER_SHARE => Part::Newsletter,
                place if place >= 100 - SALE_SHARE => Part::Sale,
                _ => Part::Steady,
            };
            let (account, bulk) = match part {
                Part::Newsletter => (NEWSLETTER, 1.0),
                Part::Steady => (ACCOUNTS[draws.random_range(0..ACCOUNTS.len())], 0.15),
                Part::Sale => (ACCOUNTS[draws.random_range(0..ACCOUNTS.len())], 0.4),
            };
            let bulk = draws.random_bool(bulk);
            let album = !bulk && draws.random_bool(0.02);
            // One in ten tells nobody, one in five two.
            let told = match draws.random_range(0..10) {
                0 => 0,
                1 | 2 => 2,
                _ => 1,
            };
            let name = |place| if album { format!("{ALBUM}example.net") } else { format!("reader{place}@example.net") };
            Intent {
                key: format!("m-{number:05}"),
                account,
                route: if bulk { "bulk" } else { "default" },
                recipients: (0..told).map(name).collect(),
                fate: Fate::draw(&mut draws),
                part,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan_and_another_seed_another() {
        let drawn = |seed| format!("{:?}", plan(seed, 200));
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn every_fate_and_every_number_of_notifications_is_drawn_and_keys_are_unique() {
        let plan = plan(1, 1_000);
        let fates: BTreeSet<_> = plan.iter().map(|intent| intent.fate).collect();
        let counts: BTreeSet<_> = plan.iter().map(Intent::notifications).collect();
        let keys: BTreeSet<_> = plan.iter().map(|intent| &intent.key).collect();
        assert_eq!((fates.len(), counts, keys.len()), (5, BTreeSet::from([0, 1, 2]), 1_000));
    }
}
