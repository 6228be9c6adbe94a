//! outboxd: a transactional outbox notification worker on PostgreSQL.
//!
//! A producer calls [`enqueue`] inside its own transaction, or the SQL function `outboxd.enqueue` from any language; the
//! program `outboxd worker` brings each notification to a known outcome. `docs/producers.md` is the producer's contract,
//! `docs/architecture.md` tells how the worker does it, and `docs/state-machine.md` lists every state and why it is left.
//!
//! The rooms, from the ground up; a lower one never knows a higher one, and rooms on one floor do not know each other:
//!
//! | room | what it owns |
//! | --- | --- |
//! | [`domain`] | the rules, pure: states, outcomes, content, addresses, what follows from what |
//! | [`retry`], [`shutdown`] | delays with jitter; stopping in two stages |
//! | [`store`] | every SQL statement |
//! | [`mail`] | every byte that is said to a provider, and what its answers prove |
//! | [`client`] | a caller of the message API that keeps its key and its draft |
//! | [`evidence`] | what others say about attempts after the event: who says it, and what it proves |
//! | [`config`] | settings, read once and checked as a whole; the only reader of the environment |
//! | [`worker`], [`http`], [`replay`], [`telemetry`] | when and what to send; the message API and health; many sent again by one decision; the log |
//! | [`app`], [`sandbox`] | the composition root; a private PostgreSQL, Postfix and SMTP server for demo and tests |
//! | [`cli`] | one file a subcommand |
pub mod app;
pub mod cli;
pub mod client;
pub mod config;
pub mod domain;
pub mod evidence;
pub mod http;
pub mod mail;
pub mod replay;
pub mod retry;
pub mod sandbox;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod worker;

pub use domain::ids::NotificationId;
pub use domain::operation::{Operation, RequestKey};
pub use store::enqueue::{EnqueueError, NewAttachment, NewNotification, enqueue};
pub use store::receipts::{ReserveError, Reserved, complete, reserve};

/// Compiles the Rust in the producer's contract.
#[cfg(doctest)]
#[doc = include_str!("../docs/producers.md")]
pub struct ProducersContract;

/// Compiles the Rust in the guide to an API of one's own.
#[cfg(doctest)]
#[doc = include_str!("../docs/own-api.md")]
pub struct OwnApi;
