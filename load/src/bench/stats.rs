//! Medians and ratios.

/// The middle of `values`, or the mean of the two middle ones; none of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted.get(middle).copied()
    } else {
        let below = sorted.get(middle.checked_sub(1)?)?;
        Some(f64::midpoint(*below, sorted[middle]))
    }
}

/// The largest of `values`; none of none.
pub(crate) fn worst(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

/// The median of the ratios of `ours` to `theirs`, round by round: what was slow for both in one
/// round cancels out. None when there are no rounds or unequally many, or `theirs` has a zero.
pub(crate) fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    if ours.len() != theirs.len() || theirs.contains(&0.0) {
        return None;
    }
    let ratios: Vec<_> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
        assert_eq!(worst(&[4.0, 1.0, 100.0, 2.0]), Some(100.0));
        assert_eq!(worst(&[]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine got slower and slower; ours was 0.9 × theirs all along.
        let theirs = [100.0, 50.0, 10.0];
        let ours = [90.0, 45.0, 9.0];
        assert_eq!(paired_ratio(&ours, &theirs), Some(0.9));
        // Medians of the columns would say 1.0.
        assert_eq!(paired_ratio(&[10.0, 20.0, 90.0], &[20.0, 10.0, 30.0]), Some(2.0));
        assert_eq!(paired_ratio(&[], &[]), None);
        assert_eq!(paired_ratio(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(paired_ratio(&[1.0], &[0.0]), None);
    }
}
