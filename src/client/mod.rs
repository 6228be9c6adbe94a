//! The caller's half of the message API: one intent, kept on disk until its outcome is known.
//!
//! Key and exact body are saved before the first attempt, and every attempt, also after a restart, sends those. It never
//! makes a new key for an old intent, and never calls a lost answer a failure.
//!
//! ```no_run
//! use outboxd::client::{Client, Draft, Limits, Outcome};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("obx_…".into(), Limits::default(), false)?;
//! let body = r#"{"sender": "shop@example.org", "recipients": [], "subject": "Hello", "body_text": "Hi."}"#;
//! let key = outboxd::domain::operation::RequestKey::new("order-17-confirmation")?;
//! let mut draft = Draft::create("drafts".as_ref(), "https://api.example.org/v1/messages", key, body.to_owned())?;
//! match client.submit(&mut draft).await? {
//!     Outcome::Confirmed { body, .. } => println!("stored: {body}"),
//!     Outcome::Rejected { detail, .. } => println!("refused: {detail}"),
//!     Outcome::Unconfirmed { .. } => println!("not known yet; the draft stays: {}", draft.path().display()),
//! }
//! # Ok(())
//! # }
//! ```

mod attempt;
mod draft;
pub mod fetch;
pub mod imap;
pub mod oidc;
mod verdict;

use std::time::{Duration, SystemTime};

use secrecy::SecretString;
use tokio::time::Instant;

pub use draft::{Draft, DraftError};

use crate::retry::full_jitter;
use verdict::{Verdict, weigh};

/// How long a client keeps trying.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For all attempts of one run together.
    pub deadline: Duration,
    /// Attempts of one run at most.
    pub tries: u16,
    /// For each attempt.
    pub try_timeout: Duration,
    /// How old a draft may be when an attempt begins, counted from its making by this machine's clock. It must be shorter than the
    /// time for which the server retains receipts: past that, the server could take the operation for a new one.
    pub window: Duration,
    /// The bound of the first delay between attempts; it doubles with every attempt (full jitter).
    pub delay_base: Duration,
    /// The bound grows no further than this.
    pub delay_cap: Duration,
}

impl Default for Limits {
    /// Two minutes and ten attempts of at most 15 s; a week, where servers retain receipts for 30 days by default.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(120),
            tries: 10,
            try_timeout: Duration::from_secs(15),
            window: Duration::from_secs(7 * 86_400),
            delay_base: Duration::from_millis(500),
            delay_cap: Duration::from_secs(30),
        }
    }
}

/// How an operation ended, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is stored: here is its receipt.
    Confirmed {
        /// The status.
        status: u16,
        /// The receipt, byte for byte.
        body: String,
        /// Whether an earlier request had stored it.
        replayed: bool,
    },
    /// It is not stored, and sending the same again changes nothing.
    Rejected {
        /// The status.
        status: u16,
        /// The problem's code, such as `invalid_content`.
        code: String,
        /// What to do, for people.
        detail: String,
    },
    /// It is not known. The draft stays: submitting it again is safe, and the only way to find out.
    Unconfirmed {
        /// Why no more attempts were made.
        why: String,
        /// Whether an attempt may have stored it; else none of this draft's has.
        in_doubt: bool,
        /// Attempts in this run.
        tries: u16,
    },
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The token cannot stand in a header.
    #[error("the token has characters that no token has")]
    Token,
    /// The HTTP library could not be set up.
    #[error("cannot set up HTTP: {0}")]
    Http(#[from] reqwest::Error),
}

/// Submits drafts.
#[derive(Debug, Clone)]
pub struct Client {
    http: attempt::Http,
    limits: Limits,
}

impl Client {
    /// A client that shows `token`. With `allow_plaintext` it sends that over plain HTTP to other machines, too.
    ///
    /// # Errors
    /// When the token is none, or HTTP cannot be set up.
    pub fn new(token: SecretString, limits: Limits, allow_plaintext: bool) -> Result<Self, ClientError> {
        Ok(Self { http: attempt::Http::new(&token, limits.try_timeout, allow_plaintext)?, limits })
    }

    /// Sends the draft until its outcome is known or a limit is reached. A draft whose outcome is confirmed or rejected may be
    /// removed; that is the caller's to do, once they have kept what they need.
    ///
    /// Dropping the future leaves the draft as it is on disk: to be submitted again.
    ///
    /// # Errors
    /// When the draft cannot be saved, so that nothing more is sent.
    pub async fn submit(&self, draft: &mut Draft) -> Result<Outcome, DraftError> {
        let until = Instant::now() + self.limits.deadline;
        let mut tries = 0;
        loop {
            if let Some(why) = self.too_old(draft) {
                return Ok(unconfirmed(draft, tries, why));
            }
            if tries >= self.limits.tries {
                return Ok(unconfirmed(draft, tries, format!("{tries} attempts brought no answer that settles it")));
            }
            let doubt_before = draft.in_doubt();
            // Before anything is sent: a crash from here on leaves the doubt on disk.
            draft.save_doubt(true)?;
            tries += 1;
            let time = self.limits.try_timeout.min(until.saturating_duration_since(Instant::now()));
            let heard = self.http.send(draft, time).await;
            let (after, why) = match weigh(&heard, doubt_before) {
                Verdict::Confirmed { status, body, replayed } => {
                    return Ok(Outcome::Confirmed { status, body, replayed });
                }
                Verdict::Rejected { status, code, detail } => {
                    draft.save_doubt(doubt_before)?;
                    return Ok(Outcome::Rejected { status, code, detail });
                }
                Verdict::Open { why } => return Ok(unconfirmed(draft, tries, why)),
                Verdict::Again { after, doubt, why } => {
                    draft.save_doubt(doubt_before || doubt)?;
                    (after, why)
                }
            };
            let delay = full_jitter(self.limits.delay_base, self.limits.delay_cap, tries - 1).max(after);
            if Instant::now() + delay >= until {
                return Ok(unconfirmed(draft, tries, format!("the time is over; last: {why}")));
            }
            tracing::debug!(tries, why, "submitting again");
            tokio::time::sleep(delay).await;
        }
    }

    /// Why the draft must not be sent any more, if so: an attempt has to end inside the window.
    fn too_old(&self, draft: &Draft) -> Option<String> {
        let age = SystemTime::now().duration_since(draft.created_at().into()).unwrap_or_default();
        (age + self.limits.try_timeout > self.limits.window).then(|| {
            "the draft is older than the window in which the server is sure to know its key: look the operation up, and ask a person \
             before it is sent under a new key"
                .to_owned()
        })
    }
}

fn unconfirmed(draft: &Draft, tries: u16, why: String) -> Outcome {
    Outcome::Unconfirmed { why, in_doubt: draft.in_doubt(), tries }
}
