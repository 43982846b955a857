//! What a packet costs besides its hops: built and stored, read at its destination and forgotten.
//!
//! Packets have no encoding in bytes yet, so this is all there is of one.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use metaroce_driver::bench::Slab;
use metaroce_wire::{Body, Envelope, HostId, MrData, Packet, Segment, lengths};

fn packet(number: u32) -> Packet {
    let (src, dst) = (HostId(number & 63), HostId(number >> 6 & 63));
    let segment = Segment { address: u64::from(number) << 12, len: 4096, packet: number, ..Segment::default() };
    Packet {
        envelope: Envelope {
            src,
            dst,
            hash: Envelope::address_hash(src, dst),
            len: lengths::mr_data(4096),
            ..Envelope::default()
        },
        body: Body::MrData(MrData { segment, ..MrData::default() }),
    }
}

fn life(c: &mut Criterion) {
    let mut group = c.benchmark_group("packets/life");
    group.throughput(Throughput::Elements(1));
    for on_their_way in [1_000, 100_000] {
        group.bench_function(BenchmarkId::from_parameter(on_their_way), |b| {
            let mut slab = Slab::default();
            let mut slots: Vec<u32> = (0..on_their_way).map(|number| slab.insert(packet(number))).collect();
            let mut number = 0;
            b.iter(|| {
                // The one that leaves has been on its way for long: its lines are cold where there are many.
                let oldest = &mut slots[(number % on_their_way) as usize];
                black_box(slab.take(*oldest));
                *oldest = slab.insert(packet(black_box(number)));
                number = number.wrapping_add(1);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, life);
criterion_main!(benches);
