//! Sorts slices as the standard library does, with one sorting function in the program instead of one for
//! each type.
//!
//! Each type that std's sort moves adds half a kilobyte to the agent, and there are some sixty. Here std
//! sorts numbers of items, once for all types; each type adds only the code of an exchange.
//!
//! Always holds: the order is stable, in `n log n` comparisons and `n` exchanges.

use std::cmp::Ordering;

/// Sorts by the order of the items.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, T::cmp);
}

/// Sorts by `compare`; equal items keep their order.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let partners = partners(items.len(), &|one, other| compare(&items[one], &items[other]));
    for (at, partner) in partners.into_iter().enumerate() {
        items.swap(at, partner);
    }
}

/// Sorts by what `key` returns; items of one key keep their order.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(items, |one, other| key(one).cmp(&key(other)));
}

/// For each place, from the first on, the place whose item is to be exchanged with the one there.
fn partners(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|one, other| compare(*one, *other));
    // where each item is after the exchanges so far, and which item is at each place
    let mut place: Vec<usize> = (0..count).collect();
    let mut item = place.clone();
    for (at, wanted) in order.iter_mut().enumerate() {
        let (from, leaves) = (place[*wanted], item[at]);
        (place[leaves], item[from]) = (from, leaves);
        *wanted = from;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lists of up to six numbers below four, each with its first place: std's result is expected.
    #[test]
    fn every_short_list_is_sorted_as_std_does() {
        for length in 0..=6_u32 {
            for number in 0..4_u32.pow(length) {
                let list: Vec<(u32, u32)> =
                    (0..length).map(|place| (number / 4_u32.pow(place) % 4, place)).collect();
                let (mut ours, mut expected) = (list.clone(), list);
                sort_by_key(&mut ours, |item| item.0);
                expected.sort_by_key(|item| item.0);
                assert_eq!(ours, expected);
            }
        }
    }

    /// A list that is turned by one place is one long cycle of exchanges.
    #[test]
    fn long_list_takes_one_exchange_for_each_item() {
        let mut items: Vec<u32> = (1..100_000).chain([0]).collect();
        sort(&mut items);
        assert!(items.into_iter().eq(0..100_000));
    }
}
