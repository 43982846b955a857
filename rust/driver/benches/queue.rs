//! The event queue in the hold model: one event popped, one pushed, at a constant number of pending ones.
//!
//! Distances are those of a fat tree at 100 Gbit/s: data and control packets over the next link, and a few timers.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use metaroce_driver::EventQueue;
use metaroce_wire::Time;

struct Distances(u64);

impl Distances {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = self.0 >> 32;
        match bits & 15 {
            0..=6 => 1_333_000 + (bits >> 8),
            7..=13 => 1_005_000 + (bits >> 12),
            14 => (bits >> 4) % 20_000_000,
            _ => (bits >> 4) % 200_000_000,
        }
    }
}

fn hold(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue/hold");
    group.throughput(Throughput::Elements(1));
    for pending in [1_000, 10_000, 100_000] {
        group.bench_function(BenchmarkId::from_parameter(pending), |b| {
            let (mut queue, mut distances) = (EventQueue::new(12, 12), Distances(1));
            (0..pending).for_each(|event| queue.push(Time(distances.next()), event));
            // Until the mix of distances is that of a run.
            let mut hold = || {
                let (now, event) = queue.pop(Time::NEVER).expect("as many are pushed as popped");
                queue.push(Time(now.0 + distances.next()), event);
            };
            (0..4 * pending).for_each(|_| hold());
            b.iter(hold);
        });
    }
    group.finish();
}

criterion_group!(benches, hold);
criterion_main!(benches);
