//! Real parts for the demo and the tests: a private PostgreSQL cluster and a scriptable SMTP server.

pub mod cluster;
pub mod demo;
pub mod guardian;
mod listener;
pub mod postfix;
mod programs;
pub mod proxy;
pub mod smtp;
