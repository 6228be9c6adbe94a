//! How much a provider is handed: its rate, its connections, and how long a connection is used.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use outboxd::sandbox::smtp::{Action, Rule, Stage};

use crate::harness::scene::Scene;

#[tokio::test]
async fn a_rate_is_never_exceeded() {
    let scene = Scene::new().await.set("provider.primary.rate_per_second", "20").set("provider.primary.burst", "5");
    let ids = scene.enqueue_many(45).await;
    let start = SystemTime::now();
    let worker = scene.worker();
    scene.until_all("sent").await;
    let mut times: Vec<Duration> =
        scene.mailbox().messages().iter().map(|one| one.at.duration_since(start).unwrap()).collect();
    times.sort();
    for (before, at) in times.iter().enumerate() {
        // Tokens are there from the start and grow with time; whatever holds a message up only makes it later.
        let allowed = 5.0 + 20.0 * at.as_secs_f64();
        assert!((before + 1) as f64 <= allowed + 1.0, "message {} after {at:?}", before + 1);
    }
    assert!(*times.last().unwrap() >= Duration::from_secs(2), "45 messages: the burst, and forty at 20 a second");
    for id in ids {
        assert_eq!(scene.db.story(id).await.attempts.len(), 1, "what has to wait is not claimed");
    }
    worker.drain().await;
}

#[tokio::test]
async fn there_are_never_more_connections_than_configured_and_they_are_used_again() {
    let slow = Action::Proceed.after(Duration::from_millis(10));
    let scene = Scene::new().await.set("provider.primary.connections", "3").rule(Rule::at(Stage::EndOfData, slow));
    scene.enqueue_many(90).await;
    let worker = scene.worker();
    scene.until_all("sent").await;
    let connections = scene.server.connections();
    assert_eq!((connections.peak, connections.total), (3, 3), "{connections:?}");
    assert_eq!(scene.mailbox().count(), 90);
    assert_eq!(scene.server.violations(), Vec::<String>::new());
    worker.drain().await;
    scene.server.wait_for_connections(|connections| connections.now == 0).await;
}

#[tokio::test]
async fn a_connection_carries_as_many_messages_as_configured() {
    let scene = Scene::new()
        .await
        .set("provider.primary.connections", "1")
        .set("provider.primary.messages_per_connection", "5");
    scene.enqueue_many(20).await;
    let worker = scene.worker();
    scene.until_all("sent").await;
    let mut carried = BTreeMap::<u64, usize>::new();
    for message in scene.mailbox().messages() {
        *carried.entry(message.connection).or_default() += 1;
    }
    assert_eq!(carried, BTreeMap::from([(1, 5), (2, 5), (3, 5), (4, 5)]));
    assert_eq!(scene.server.violations(), Vec::<String>::new(), "each ends with QUIT");
    worker.drain().await;
}

/// The first message's connection is lost in this way: `unused`, before the second message comes, or as that one uses it.
async fn lost_while_idle(unused: bool, rule: Rule) {
    let scene = Scene::new().await.set("provider.primary.connections", "1").rule(rule.once().label("lost"));
    let worker = scene.worker();
    let first = scene.enqueue().await;
    scene.until(first, "sent").await;
    if unused {
        scene.server.wait_for_connections(|connections| connections.now == 0).await;
    }
    let second = scene.enqueue().await;
    let story = scene.until(second, "sent").await;
    assert_eq!((story.attempts.len(), story.notification.tries), (1, 1), "{story:#?}");
    assert_eq!(scene.suspicions(second).await, 0);
    scene.server.script().wait_fired("lost", 1).await;
    assert_eq!(scene.server.connections().total, 2);
    scene.assert_deliveries(second, 1);
    worker.drain().await;
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_costs_the_next_message_nothing() {
    let farewell = || Action::reply_then_close("421 4.4.2 idle for too long");
    lost_while_idle(true, Rule::at(Stage::Idle, farewell().after(Duration::from_millis(50)))).await;
    lost_while_idle(true, Rule::at(Stage::Idle, Action::Reset.after(Duration::from_millis(50)))).await;
    lost_while_idle(false, Rule::at(Stage::Mail, farewell()).transaction(2)).await;
    lost_while_idle(false, Rule::at(Stage::Mail, Action::Close).transaction(2)).await;
    lost_while_idle(false, Rule::at(Stage::Mail, Action::Reset).transaction(2)).await;
}
