//! Every SQL statement, one an intent. The rest of the program never names a table.
//!
//! The worker's statements are methods of [`Line`], a connection of its own that bounds each statement and is replaced
//! after a failure. Producers' and readers' functions take the caller's connection.

pub mod accept;
pub mod audit;
pub mod begin;
pub mod claim;
pub mod decide;
pub mod desk;
pub mod doctor;
pub mod enqueue;
pub mod erase;
pub mod evidence;
pub mod line;
pub mod lines;
pub mod listen;
pub mod migrate;
pub mod operations;
pub mod operators;
pub mod overview;
pub mod promote;
pub mod pulse;
pub mod receipts;
pub mod recovery;
pub mod renew;
pub mod replay;
pub mod retention;
pub mod search;
pub mod settle;
pub mod stats;
pub mod story;
pub mod tokens;
pub mod unlocked;
mod weighing;

pub use line::{Line, StoreError};
