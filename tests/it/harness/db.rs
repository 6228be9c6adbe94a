//! One cluster for the whole run, and a migrated database of its own for every test that asks.

use std::sync::OnceLock;

use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::store::migrate::migrate;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::OnceCell;

use super::say;

/// Connections of one test's own pool: enough to race with, few enough for all tests that run at once.
const POOL_SIZE: u32 = 8;

/// The run's cluster. Started by the first test that asks; its guardian removes it after the last one.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start(&Options::default()).expect("a private cluster for the tests");
        if std::env::var_os("OUTBOXD_TEST_KEEP").is_some() {
            say(&cluster.keep());
        }
        cluster
    })
}

/// A migrated database that no other test sees.
#[derive(Debug)]
pub(crate) struct TestDb {
    /// Connections for the test's own questions.
    pub(crate) pool: PgPool,
    /// The database's address, for programs under test.
    pub(crate) url: String,
}

impl TestDb {
    /// A fresh copy of the migrated template.
    pub(crate) async fn new() -> Self {
        static TEMPLATE: OnceCell<String> = OnceCell::const_new();
        let template = TEMPLATE
            .get_or_init(async || {
                let name = cluster().create_database(None).await.expect("a database for the template");
                let mut connection =
                    PgConnection::connect(&cluster().url(&name)).await.expect("a connection to the template");
                migrate(&mut connection).await.expect("the migrations to run");
                connection.close().await.expect("the template to be left alone");
                name
            })
            .await;
        let name = cluster().create_database(Some(template)).await.expect("a copy of the template");
        Self::at(cluster().url(&name)).await
    }

    /// A migrated database on a cluster of the test's own, which may be stopped and broken.
    pub(crate) async fn on(cluster: &Cluster) -> Self {
        let name = cluster.create_database(None).await.expect("a database");
        let db = Self::at(cluster.url(&name)).await;
        migrate(&mut db.pool.acquire().await.unwrap()).await.expect("the migrations to run");
        db
    }

    async fn at(url: String) -> Self {
        let pool = PgPoolOptions::new().max_connections(POOL_SIZE).connect(&url).await.expect("a pool on the copy");
        Self { pool, url }
    }
}

#[tokio::test]
async fn what_one_test_writes_no_other_test_sees() {
    let (one, other) = tokio::join!(TestDb::new(), TestDb::new());
    sqlx::raw_sql("CREATE TABLE mine ()").execute(&one.pool).await.unwrap();
    let seen = sqlx::query_scalar::<_, bool>("SELECT to_regclass('mine') IS NOT NULL");
    assert!(!seen.fetch_one(&other.pool).await.unwrap());
    assert_ne!(one.url, other.url);
}
