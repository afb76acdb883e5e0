//! F40: a thousand waiters for one lock, which load the whole machine.

use super::crowd::Crowd;
use super::fixture::{Queue, assert_ran};
use crate::support::store::Store;

/// F40
#[test]
fn two_hundred_waiters_on_one_file_run_once_each_in_ticket_order() {
    let queue = Queue::of(Store::file());
    let mut holder = queue.holder("holder");
    let crowd = Crowd::in_line(&queue, 200);
    let order = crowd.order(&queue);
    queue.let_go("holder");
    crowd.assert_served(&queue, &order);
    assert_ran([&mut holder]);
    queue.assert_nothing_left();
}

mod redis {
    use super::*;
    use crate::support::monitor::{Monitor, Request};
    use crate::support::redis::{Redis, is_memory};

    /// The cost of a crowd for each member.
    #[derive(Debug)]
    struct Cost {
        /// Requests from its start to its end.
        requests: f64,
        /// Requests, and bytes in both directions, from the moment when all were in the queue.
        hand_off: [f64; 3],
    }

    fn serve(count: usize) -> Cost {
        let redis = Redis::start();
        let queue = Queue::of(Store::on(&redis));
        // From here on the server has the scripts.
        assert_ran([&mut queue.store.run().command(["true"]).spawn()]);
        let mut holder = queue.holder("holder");
        let monitor = Monitor::of(&redis);
        let crowd = Crowd::in_line(&queue, count);
        let order = crowd.order(&queue);
        let (requests_before, traffic_before) = (of_waiters(&monitor), monitor.traffic());
        queue.let_go("holder");
        crowd.assert_served(&queue, &order);
        let (requests_after, traffic_after) = (of_waiters(&monitor), monitor.traffic());
        assert_ran([&mut holder]);
        queue.assert_nothing_left();
        let left = redis.command(&["KEYS", "*"]).texts();
        assert!(left.iter().all(|key| is_memory(key)), "{left:?}");
        let each = |number: u64| number as f64 / count as f64;
        Cost {
            requests: each(requests_after),
            hand_off: [
                each(requests_after - requests_before),
                each(traffic_after.0 - traffic_before.0),
                each(traffic_after.1 - traffic_before.1),
            ],
        }
    }

    /// The requests of the clients that came after the monitor; the holder was there before.
    fn of_waiters(monitor: &Monitor) -> u64 {
        let requests = monitor.requests();
        let comes = |request: &&Request| request.words[0] == "HELLO";
        let mut waiters: Vec<&str> =
            requests.iter().filter(comes).map(|request| request.client.as_str()).collect();
        waiters.sort_unstable();
        requests.iter().filter(|request| waiters.binary_search(&request.client.as_str()).is_ok()).count()
            as u64
    }

    /// F40: no wake-up is lost, and no waiter sends more requests than necessary.
    #[test]
    fn a_thousand_waiters_on_one_redis_run_once_each_in_ticket_order() {
        let few = serve(10);
        let many = serve(1000);
        println!("each of 10: {few:?}\neach of 1000: {many:?}");
        assert!(many.requests <= 6.0, "{many:?}");
        for (few, many) in few.hand_off.iter().zip(many.hand_off) {
            assert!(many <= few * 1.5, "{few} for each of 10, {many} for each of 1000");
        }
    }
}
