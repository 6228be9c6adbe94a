//! Group commit of *begin*: whatever waits while one statement runs goes into the next.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::domain::ids::{Fence, NotificationId};
use crate::retry::Patience;
use crate::store::Line;

/// How many begins share one statement: past a few hundred the statement gets longer, not cheaper.
const BATCH_MAX_ROWS: usize = 500;

/// How many begins may wait. A sender's slot waits here, so there can never be more than there are slots.
const QUEUE_MAX_ROWS: usize = 4_096;

/// How long a begin is tried. A server that has answered 354 waits at least 3 minutes for the body (RFC 5321,
/// 4.5.3.2.5), so giving up after 30 s leaves it a connection to drop and us a notification that is known not to be sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the body may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It is on record: go.
    Yes,
    /// The claim is no longer good, or somebody else has locked its row: do not.
    Refused,
    /// The database could not be asked: do not.
    Unknown,
}

/// The way to ask for a begin.
#[derive(Debug, Clone)]
pub struct Beginner(mpsc::Sender<Asked>);

type Asked = ((NotificationId, Fence), oneshot::Sender<Begun>);

impl Beginner {
    /// Asks for a begin and waits until it is durable.
    pub async fn begin(&self, id: NotificationId, fence: Fence) -> Begun {
        let (answer, answered) = oneshot::channel();
        if self.0.send(((id, fence), answer)).await.is_err() {
            return Begun::Unknown;
        }
        answered.await.unwrap_or(Begun::Unknown)
    }
}

/// Makes the asking side and the task that serves it until every [`Beginner`] is gone.
pub fn beginner(mut line: Line) -> (Beginner, impl Future<Output = ()> + Send) {
    let (sender, mut receiver) = mpsc::channel(QUEUE_MAX_ROWS);
    let serve = async move {
        let mut asked: Vec<Asked> = Vec::with_capacity(BATCH_MAX_ROWS);
        while receiver.recv_many(&mut asked, BATCH_MAX_ROWS).await > 0 {
            let claims: Vec<_> = asked.iter().map(|(claim, _)| *claim).collect();
            let begun = patiently(&mut line, &claims).await;
            for (claim, answer) in asked.drain(..) {
                let verdict = match &begun {
                    None => Begun::Unknown,
                    // By claim, not by notification: a batch may hold a stale claim beside the present one.
                    Some(begun) if begun.contains(&claim) => Begun::Yes,
                    Some(_) => Begun::Refused,
                };
                // A sender that has gone has dropped its connection, and nothing leaves.
                let _ = answer.send(verdict);
            }
        }
    };
    (Beginner(sender), serve)
}

async fn patiently(line: &mut Line, claims: &[(NotificationId, Fence)]) -> Option<HashSet<(NotificationId, Fence)>> {
    let mut patience = Patience::new(Duration::from_millis(50), Duration::from_secs(2), PATIENCE);
    let mut claims = Cow::Borrowed(claims);
    loop {
        match line.begin(&claims).await {
            Ok(begun) => return Some(begun),
            Err(error) => {
                let Some(delay) = patience.next_delay().filter(|_| !error.is_permanent()) else {
                    tracing::error!(rows = claims.len(), %error, "begin given up; nothing of these leaves");
                    return None;
                };
                tracing::warn!(rows = claims.len(), %error, "begin failed, trying again");
                if error.is_lock_timeout()
                    && let Ok(unlocked) = line.unlocked(claims.iter().map(|(id, _)| *id)).await
                {
                    // Whatever somebody else has locked is refused, so that the others need not wait for it.
                    claims.to_mut().retain(|(id, _)| unlocked.contains(id));
                }
                tokio::time::sleep(delay).await;
            }
        }
    }
}
