//! The rules, pure: no tokio, sqlx, lettre, axum, clock or randomness.
//!
//! Everything that decides what may happen to a notification stands here, so that it can be read and tested without a
//! database or a network. Time reaches this room only as durations; comparisons with "now" are made by the database.

pub mod address;
pub(crate) mod attachment;
pub mod content;
pub mod evidence;
pub mod fingerprint;
pub mod ids;
pub mod issued_key;
pub mod operation;
pub mod operator;
pub mod outcome;
pub mod policy;
pub mod state;
pub mod submission;
pub mod tally;
pub mod token;
