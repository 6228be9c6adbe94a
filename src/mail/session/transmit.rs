//! The body and the end of data: the one place where an attempt can become doubtful.
//!
//! The phase says at every moment whether a byte of the end of data may have left, also when a future is dropped.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::{Session, State};
use crate::domain::outcome::{Phase, Reply};
use crate::mail::body::{end_of_data, inspect, stuff};
use crate::mail::classify::{Cause, Failure, SERVICE_CLOSING};
use crate::mail::endpoint::Timeouts;
use crate::mail::reply::Severity;
use crate::mail::stream::Step;

impl Session {
    /// Sends the message and the end of data, and takes the server's word on it: 2yz, and nothing else, is acceptance.
    ///
    /// If the future is dropped, [`Self::phase`] says whether the end of data may have left.
    ///
    /// # Errors
    /// In [`Phase::Body`] while it is certain that no byte of the end of data has left, else in [`Phase::EndOfData`].
    pub async fn transmit(&mut self, message: &[u8]) -> Result<Reply, Failure> {
        if self.state != State::Awaiting {
            return Err(Failure::new(Phase::Data, Cause::Protocol("no offer of this message was accepted")));
        }
        self.state = State::Broken;
        self.phase = Phase::Body;
        let unsendable = |why| Failure::new(Phase::Body, Cause::Unsendable(why));
        let shape = inspect(message).map_err(unsendable)?;
        if shape.eight_bit && !self.eight_bit {
            return Err(unsendable("the message has bytes above 127 and was not offered so"));
        }
        self.send(&stuff(message, shape), end_of_data(message)).await?;
        let reply = self.hear(self.timeouts.end_of_data).await?;
        let in_step = reply.code != SERVICE_CLOSING && !self.connection.has_leftover();
        let next = |state| if in_step { state } else { State::Broken };
        match Severity::of(reply.code) {
            Severity::Completed => {
                self.state = next(State::Ready);
                Ok(reply)
            }
            Severity::Transient | Severity::Permanent => {
                self.state = next(State::Unfinished);
                Err(Failure::new(Phase::EndOfData, Cause::Reply(reply)))
            }
            Severity::Intermediate | Severity::Unknown => {
                Err(Failure::new(Phase::EndOfData, Cause::Protocol("neither 2yz nor 4yz nor 5yz to the end of data")))
            }
        }
    }

    async fn send(&mut self, body: &[u8], end: &[u8]) -> Result<(), Failure> {
        let until = Instant::now() + self.timeouts.body;
        if !self.connection.is_tls() {
            // The kernel tells how many bytes it took, so body and end can go in one write and the phase is still exact.
            return self.push(body, end, until).await;
        }
        // The TLS layer takes bytes without telling which have left: the body must be with the kernel before the end
        // is given to it, and from then on the end counts as written.
        self.push(body, &[], until).await?;
        let (limit, told) = self.block_limit(until);
        let flushed = timeout(limit, self.connection.flush()).await;
        self.check_step(flushed, told).await?;
        if !self.connection.is_quiet() {
            return Err(self.interrupted(Cause::Closed).await);
        }
        self.phase = Phase::EndOfData;
        let limit = self.timeouts.block;
        match timeout(limit, self.connection.write(end)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => Err(self.interrupted(cause).await),
            Err(_) => Err(Failure::new(self.phase, Cause::Timeout(limit))),
        }
    }

    /// Writes `body` and then `end`; the phase is [`Phase::EndOfData`] from the first byte of `end` that was taken.
    async fn push(&mut self, body: &[u8], end: &[u8], until: Instant) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < body.len() + end.len() {
            let first = body.get(sent..).unwrap_or_default();
            let second = end.get(sent.saturating_sub(body.len())..).unwrap_or_default();
            let (limit, told) = self.block_limit(until);
            let step = timeout(limit, self.connection.step(first, second)).await;
            sent += self.check_step(step, told).await?;
            if sent > body.len() {
                self.phase = Phase::EndOfData;
            }
        }
        Ok(())
    }

    /// How long the next progress is awaited, and which limit that is.
    fn block_limit(&self, until: Instant) -> (Duration, Duration) {
        let left = until.saturating_duration_since(Instant::now());
        let Timeouts { block, body, .. } = self.timeouts;
        if left < block { (left, body) } else { (block, block) }
    }

    async fn check_step(
        &mut self,
        step: Result<Step, tokio::time::error::Elapsed>,
        limit: Duration,
    ) -> Result<usize, Failure> {
        match step {
            Ok(Step::Wrote(count)) => Ok(count),
            Ok(Step::Spoke) => Err(self.interrupted(Cause::Protocol("half a reply that nothing had asked for")).await),
            Ok(Step::Closed) => Err(Failure::new(self.phase, Cause::Closed)),
            Ok(Step::Failed(error)) => Err(self.interrupted(error.into()).await),
            Err(_) => Err(Failure::new(self.phase, Cause::Timeout(limit))),
        }
    }
}
