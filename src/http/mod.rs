//! What the process answers over HTTP. This room decides nothing about notifications.

pub mod api;
pub mod console;
pub mod ops;
pub mod serve;
