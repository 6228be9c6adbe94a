//! The worker: from a ready notification to a known outcome.
//!
//! [`dispatch`] decides *when* to claim, [`deliver`] *what* happens to what was claimed; [`begin`] and [`settle`] write
//! many at once; [`renew`] keeps the leases of long sends; [`timekeeper`] does what time alone decides;
//! [`pulse`] tells others how it stands with each provider. No database
//! transaction is ever open while the network is used.

pub mod begin;
pub mod deliver;
pub mod dispatch;
pub mod held;
pub mod pulse;
pub mod renew;
pub mod retention;
pub mod run;
pub mod settle;
pub mod timekeeper;
pub mod wakeup;

pub use run::{Settings, run};
