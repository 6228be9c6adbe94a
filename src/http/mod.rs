//! What the process answers over HTTP. This room decides nothing about notifications.

pub mod ops;
