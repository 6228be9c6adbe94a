//! One test for each fault that was found in use and mended.

use crate::harness::{Proc, TestDb};

/// It said "results not written at shutdown" although nothing was under way.
#[tokio::test]
async fn a_drain_with_nothing_under_way_is_clean_and_says_so() {
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
    let mut worker = Proc::start(&["worker"], &config);
    worker.line_with("working").await;
    worker.terminate();
    let ended = worker.ended().await;
    let log = worker.log();
    assert!(ended.success() && log.contains("drained") && !log.contains("ERROR"), "{log}");
}
