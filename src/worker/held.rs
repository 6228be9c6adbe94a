//! What this worker holds: the claims that are neither settled nor given up, for the renewal of their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::ids::{Fence, NotificationId};

/// The claims in this worker's hands.
#[derive(Debug, Clone, Default)]
pub struct Held(Arc<Mutex<HashMap<NotificationId, Fence>>>);

impl Held {
    /// Notes a claim.
    pub fn add(&self, id: NotificationId, fence: Fence) {
        self.lock().insert(id, fence);
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
