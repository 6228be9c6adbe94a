//! One test for each fault that was found in use and mended.

use crate::harness::{Proc, TestDb};

/// Half of all quiet drains said "results not written at shutdown" although nothing was under way.
#[tokio::test]
async fn a_drain_with_nothing_under_way_is_clean_and_says_so() {
    /// Enough that a fault of every second drain is missed once in sixty-four runs.
    const WORKERS: usize = 6;
    let db = TestDb::new().await;
    let config = format!(
        r#"
        database.url = "{}"
        mail.message_id_domain = "ids.outbox.test"
        ops.listen = ""
        provider.primary = {{ host = "127.0.0.1", security = "plaintext" }}
        "#,
        db.url
    );
    let mut workers: Vec<Proc> = (0..WORKERS).map(|_| Proc::start(&["worker"], &config)).collect();
    for worker in &mut workers {
        worker.line_with("working").await;
        worker.terminate();
        let ended = worker.ended().await;
        let log = worker.log();
        assert!(ended.success() && log.contains("drained") && !log.contains("ERROR"), "{log}");
    }
}
