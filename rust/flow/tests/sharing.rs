//! Max-min fairness of rates, whatever comes and goes.
#![allow(clippy::float_arithmetic, reason = "rates are fractions, as in the crate")]

use metaroce_flow::Sharing;
use proptest::prelude::*;

const CLOSE: f64 = 1e-5;

/// No resource is over capacity, and every active route has a full one where nobody has more.
fn assert_fair(sharing: &Sharing, capacities: &[f64], active: &[bool]) {
    let mut load = vec![0.0; capacities.len()];
    let mut most = vec![0.0f64; capacities.len()];
    for route in (0..active.len() as u32).filter(|&r| active[r as usize]) {
        for (resource, weight) in sharing.uses_of(route) {
            load[resource as usize] += weight * sharing.rate(route);
            most[resource as usize] = most[resource as usize].max(sharing.rate(route));
        }
    }
    for (resource, &capacity) in capacities.iter().enumerate() {
        assert!(load[resource] <= capacity * (1.0 + CLOSE), "resource {resource}: {} of {capacity}", load[resource]);
    }
    for route in (0..active.len() as u32).filter(|&r| active[r as usize]) {
        let held = |(resource, _): (u32, f64)| {
            let at = resource as usize;
            load[at] >= capacities[at] * (1.0 - CLOSE) && sharing.rate(route) >= most[at] * (1.0 - CLOSE)
        };
        assert!(sharing.uses_of(route).any(held), "nothing holds route {route} back at {}", sharing.rate(route));
    }
}

fn routes(resources: usize) -> impl Strategy<Value = Vec<Vec<(u32, f64)>>> {
    let weight = prop_oneof![Just(1.0), Just(0.5), Just(0.25)];
    let one = prop::collection::btree_map(0..resources as u32, weight, 1..5);
    prop::collection::vec(one.prop_map(|uses| uses.into_iter().collect()), 1..40)
}

/// Capacities, routes, and batches of routes that start or stop.
type Scenes = (Vec<f64>, Vec<Vec<(u32, f64)>>, Vec<Vec<usize>>);

fn scenes() -> impl Strategy<Value = Scenes> {
    (2usize..12).prop_flat_map(|resources| {
        let capacity = prop_oneof![Just(1e11), Just(2e11), Just(4e11), 1e9..1e12];
        let batches = prop::collection::vec(prop::collection::vec(0usize..1000, 1..6), 1..30);
        (prop::collection::vec(capacity, resources), routes(resources), batches)
    })
}

proptest! {
    // One in some thousand has a route outside of what is shared out anew that is to gain by it.
    #![proptest_config(ProptestConfig { cases: 8192, ..ProptestConfig::default() })]

    #[test]
    fn rates_are_max_min_fair_after_every_change((capacities, routes, batches) in scenes()) {
        let mut sharing = Sharing::new(capacities.iter().copied());
        for uses in &routes {
            sharing.add_route(uses.iter().copied());
        }
        let mut active = vec![false; routes.len()];
        for batch in batches {
            for pick in batch {
                let route = pick % routes.len();
                if active[route] { sharing.stop(route as u32) } else { sharing.start(route as u32) }
                active[route] = !active[route];
            }
            sharing.settle();
            assert_fair(&sharing, &capacities, &active);
        }
    }

    #[test]
    fn the_order_of_the_input_changes_no_rate((capacities, routes, _) in scenes(), turn in 0usize..40) {
        let rates = |turn: usize| {
            let mut sharing = Sharing::new(capacities.iter().copied());
            let mut numbers = vec![0; routes.len()];
            for at in (0..routes.len()).map(|at| (at + turn) % routes.len()) {
                numbers[at] = sharing.add_route(routes[at].iter().copied());
                sharing.start(numbers[at]);
            }
            sharing.settle();
            numbers.into_iter().map(|number| sharing.rate(number)).collect::<Vec<_>>()
        };
        for (one, other) in rates(0).into_iter().zip(rates(turn)) {
            prop_assert!((one - other).abs() <= CLOSE * one, "{one} and {other}");
        }
    }
}

#[test]
fn who_leaves_gives_way_to_those_who_were_held_back() {
    let mut sharing = Sharing::new([100.0, 300.0]);
    let [a, b, c] = [vec![0], vec![0, 1], vec![1]].map(|uses| sharing.add_route(uses.into_iter().map(|r| (r, 1.0))));
    [a, b, c].into_iter().for_each(|route| sharing.start(route));
    assert_eq!(sharing.settle(), [a, b, c]);
    assert_eq!([a, b, c].map(|route| sharing.rate(route).round()), [50.0, 50.0, 250.0]);
    sharing.stop(a);
    assert_eq!(sharing.settle(), [b, c]);
    assert_eq!([b, c].map(|route| sharing.rate(route).round()), [100.0, 200.0]);
}
