//! What "the same content" means: a versioned hash of a submission's canonical form.
//!
//! A version never changes its meaning: receipts hold fingerprints for as long as they are retained.

use std::fmt;

use super::submission::Submission;

/// Its first octet is the version.
#[derive(Clone, PartialEq, Eq)]
pub struct Fingerprint([u8; 33]);

/// SHA-256 over the canonical form (RFC 8785), as docs/api.md describes it.
const VERSION: u8 = 1;

impl Fingerprint {
    /// The fingerprint of what a submission says.
    #[must_use]
    pub fn of(submission: &Submission) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, submission.canonical().as_bytes());
        let mut octets = [VERSION; 33];
        octets[1..].copy_from_slice(digest.as_ref());
        Self(octets)
    }

    /// The octets as stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// In hexadecimal.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
