//! One suite for every manager, against the real store: a directory, etcd 3.4 and etcd 3.6.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

#[path = "contract/bed.rs"]
mod bed;
#[path = "contract/etcd_server.rs"]
mod etcd_server;
#[path = "contract/suite.rs"]
mod suite;

macro_rules! suite {
    ($bed:ident: $($case:ident),* $(,)?) => {
        mod $bed {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::suite::$case(crate::bed::$bed()).await;
                }
            )*
        }
    };
}

macro_rules! everywhere {
    ($($case:ident),* $(,)?) => {
        suite!(directory: $($case),*);
        suite!(etcd_3_4: $($case),*);
        suite!(etcd_3_6: $($case),*);
    };
}

everywhere!(
    configuration_is_waited_for,
    a_new_node_gets_a_lease_that_go_can_read,
    a_restart_keeps_the_lease,
    nodes_get_distinct_subnets,
    a_moved_node_keeps_its_subnet,
    one_address_two_nodes_is_refused,
    a_clone_is_refused,
    what_subnet_env_names_is_wished_for,
    no_lease_holds_a_node,
    a_full_pool_is_waited_for,
    a_go_lease_is_adopted_when_the_underlay_was_named,
    unknown_fields_survive,
    hostile_keys_change_nothing,
    keys_that_are_no_text_are_counted,
    an_unreadable_key_of_ours_is_ours,
    attributes_are_republished,
    a_deleted_key_comes_back,
    a_taken_key_is_lost,
    dual_stack_grows_and_shrinks,
    v6_only_nodes_are_told_apart,
    many_at_once,
);

macro_rules! etcd {
    ($($case:ident),* $(,)?) => {
        suite!(etcd_3_4: $($case),*);
        suite!(etcd_3_6: $($case),*);
    };
}

mod etcd_alone {
    etcd!(
        reservations_stay,
        an_operator_reserves_by_hand,
        a_foreign_address_by_hand_is_put_back,
        restarts_go_on_with_the_same_lease,
        a_revoked_lease_comes_back,
        the_watch_survives_compaction_and_restarts,
        the_watch_notices_a_restored_store,
        the_watch_notices_a_restored_store_that_is_ahead,
        pages_shrink_to_fit_large_values,
        tls_needs_a_ca_alone,
        passwords,
        a_dead_endpoint_is_passed_over,
        a_foreign_cluster_is_no_refuge,
        a_cluster_set_up_anew_is_accepted,
        authentication_comes_and_goes,
        tls_says_which_side_refuses_what,
    );
}

mod directory_alone {
    suite!(directory: a_directory_that_is_away_changes_nothing, a_link_is_no_lease, what_a_killed_daemon_left_is_cleared);
}
