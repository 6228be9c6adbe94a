//! Request keys that carry a verifiable time of issue: a UUIDv7 of the server's, with a MAC.
//!
//! They close the gap that retention opens: an operation whose receipt is gone would be taken for new, unless its key
//! tells that it is too old to be.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use time::OffsetDateTime;
use uuid::Uuid;

use super::operation::RequestKey;

/// Begins every issued key. What does not begin so is a key of the caller's own.
const PREFIX: &str = "ik1.";

/// Octets of the MAC that a key carries: 128 bits are beyond guessing (RFC 2104, 5, asks for half of the hash at least).
const MAC_OCTETS: usize = 16;

/// The shortest secret, in octets: as long as the hash's output (RFC 2104, 3).
pub const SECRET_MIN_OCTETS: usize = 32;

/// Issues keys and knows its own again. Clones share the secret.
#[derive(Clone)]
pub struct KeyMint(hmac::Key);

impl fmt::Debug for KeyMint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyMint(…)")
    }
}

/// What a request key turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The caller's own: it tells no time.
    Caller,
    /// Issued to this account at this time.
    Issued(OffsetDateTime),
    /// It claims to be issued, and was not, or to another account, or under another secret.
    Forged,
}

impl KeyMint {
    /// A mint with this secret; all servers of one database need the same. `None` where it is too short.
    #[must_use]
    pub fn new(secret: &[u8]) -> Option<Self> {
        (secret.len() >= SECRET_MIN_OCTETS).then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// The key for a fresh UUIDv7, for use by this account alone. `None` where the id is of another version.
    #[must_use]
    pub fn issue(&self, account_id: &str, id: Uuid) -> Option<RequestKey> {
        issued_at(id)?;
        let tag = hmac::sign(&self.0, &signed(account_id, id));
        let mac = URL_SAFE_NO_PAD.encode(tag.as_ref().get(..MAC_OCTETS)?);
        RequestKey::new(format!("{PREFIX}{id}.{mac}")).ok()
    }

    /// What `key` is, used by this account.
    #[must_use]
    pub fn origin(&self, account_id: &str, key: &RequestKey) -> Origin {
        let Some(issued) = key.as_str().strip_prefix(PREFIX) else { return Origin::Caller };
        // Made anew and compared as a whole, so that each id has one spelling; the MAC in constant time.
        let id = issued.split_once('.').and_then(|(id, _)| id.parse::<Uuid>().ok());
        let Some((id, at)) = id.and_then(|id| Some((id, issued_at(id)?))) else { return Origin::Forged };
        let Some(expected) = self.issue(account_id, id) else { return Origin::Forged };
        let known = hmac::sign(&self.0, expected.as_str().as_bytes());
        match hmac::verify(&self.0, key.as_str().as_bytes(), known.as_ref()) {
            Ok(()) => Origin::Issued(at),
            Err(ring::error::Unspecified) => Origin::Forged,
        }
    }
}

/// What the MAC covers. No two pairs of account and id come to the same octets.
fn signed(account_id: &str, id: Uuid) -> Vec<u8> {
    [b"outboxd request key 1\0", id.as_bytes().as_slice(), account_id.as_bytes()].concat()
}

/// The time in a UUIDv7 (RFC 9562, 5.7).
fn issued_at(id: Uuid) -> Option<OffsetDateTime> {
    if id.get_version_num() != 7 {
        return None;
    }
    let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
    let seconds = i64::try_from(seconds).ok()?;
    Some(OffsetDateTime::from_unix_timestamp(seconds).ok()? + time::Duration::nanoseconds(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Uuid = Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);

    fn mint(octet: u8) -> KeyMint {
        KeyMint::new(&[octet; 32]).unwrap()
    }

    #[test]
    fn an_issued_key_tells_when_it_was_issued() {
        let key = mint(1).issue("acme", ID).unwrap();
        let Origin::Issued(at) = mint(1).origin("acme", &key) else { panic!("{key}") };
        assert_eq!(at.unix_timestamp_nanos() / 1_000_000, 0x0199_0000_0000);
        assert_eq!(RequestKey::from_header(key.as_str().as_bytes()).unwrap(), key, "it needs no quotes");
    }

    #[test]
    fn the_key_of_another_account_or_secret_is_forged() {
        let key = mint(1).issue("acme", ID).unwrap();
        assert_eq!(mint(1).origin("acme2", &key), Origin::Forged);
        assert_eq!(mint(2).origin("acme", &key), Origin::Forged);
    }

    #[test]
    fn every_changed_character_makes_it_forged() {
        let key = mint(1).issue("acme", ID).unwrap();
        for at in PREFIX.len()..key.as_str().len() {
            for new in ["A", "b", "0", "."] {
                let mut text = key.as_str().to_owned();
                text.replace_range(at..=at, new);
                let changed = RequestKey::new(text).unwrap();
                let expected = if changed == key { mint(1).origin("acme", &key) } else { Origin::Forged };
                assert_eq!(mint(1).origin("acme", &changed), expected, "{changed}");
            }
        }
    }

    #[test]
    fn a_callers_own_key_is_left_alone() {
        assert_eq!(mint(1).origin("acme", &RequestKey::new("order-17").unwrap()), Origin::Caller);
    }

    #[test]
    fn a_short_secret_and_an_id_without_a_time_are_refused() {
        assert!(KeyMint::new(&[0; 31]).is_none());
        assert_eq!(mint(1).issue("acme", Uuid::nil()), None);
        for text in ["ik1.", "ik1.x.y", "ik1.00000000-0000-4000-8000-000000000001.AAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(mint(1).origin("acme", &RequestKey::new(text).unwrap()), Origin::Forged, "{text}");
        }
    }
}
