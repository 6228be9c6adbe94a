//! What this worker holds: the claims that are neither settled nor given up, for the renewal of their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::ids::{Fence, NotificationId};

/// The claims in this worker's hands.
#[derive(Debug, Clone, Default)]
pub struct Held(Arc<Mutex<HashMap<NotificationId, Fence>>>);

impl Held {
    /// Notes a claim, until the holding is dropped or its result is handed over.
    pub fn hold(&self, id: NotificationId, fence: Fence) -> Holding {
        self.lock().insert(id, fence);
        Holding { held: Some(self.clone()), id, fence }
    }

    /// Forgets a claim, unless the notification has been claimed anew since.
    pub fn remove(&self, id: NotificationId, fence: Fence) {
        let mut held = self.lock();
        if held.get(&id) == Some(&fence) {
            held.remove(&id);
        }
    }

    /// All claims held now.
    #[must_use]
    pub fn all(&self) -> Vec<(NotificationId, Fence)> {
        self.lock().iter().map(|(&id, &fence)| (id, fence)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NotificationId, Fence>> {
        // A map of plain values is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim in the hands of an attempt. An attempt that ends without a result, as by a panic, drops it: the lease is then no
/// longer renewed and tells what is known. Kept alive for ever, such a row would never move again.
#[derive(Debug)]
#[must_use]
pub struct Holding {
    held: Option<Held>,
    id: NotificationId,
    fence: Fence,
}

impl Holding {
    /// The result is with the settler, which forgets the claim once it is written.
    pub fn handed_over(mut self) {
        self.held = None;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.remove(self.id, self.fence);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn an_attempt_that_ends_without_a_result_renews_its_lease_no_longer() {
        let held = Held::default();
        let claim = |fence| (NotificationId(Uuid::nil()), Fence(fence));
        let stale = held.hold(claim(1).0, claim(1).1);
        let present = held.hold(claim(2).0, claim(2).1);
        drop(stale);
        assert_eq!(held.all(), [claim(2)], "a stale claim's end says nothing about the present one");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _present = present;
            panic!("an attempt's bug");
        }));
        assert!(panicked.is_err());
        assert_eq!(held.all(), []);

        held.hold(claim(3).0, claim(3).1).handed_over();
        assert_eq!(held.all(), [claim(3)], "until the settler has written the result");
    }
}
