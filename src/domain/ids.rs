//! The identities of a notification and of a claim on it.
//!
//! A [`NotificationId`] never changes and is the dedup key on the wire; a [`Fence`] is what a claim is checked against.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The identity of one notification (a UUIDv7), the same on every attempt and for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NotificationId(pub Uuid);

impl NotificationId {
    /// The `Message-ID` header's value for this notification, angle brackets included (RFC 5322, 3.6.4).
    #[must_use]
    pub fn message_id(&self, domain: &str) -> String {
        format!("<{}@{domain}>", self.0)
    }
}

impl fmt::Display for NotificationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for NotificationId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::from_str(text).map(Self)
    }
}

/// A number that grows with every claim on a notification. A write that carries an old one changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub i64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
