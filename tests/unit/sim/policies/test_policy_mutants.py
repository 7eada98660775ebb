"""One planted defect for each kind of policy, which the tests by hand must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from helpers.planted import Defect, module_of, plant

DEFECTS = {
    # caches
    "least recent counts arrivals of demands": Defect(
        "recency",
        "if cause is not DEMAND:\n            self._orders[self._pool_of[key]].setdefault",
        "if cause is DEMAND:\n            self._orders[self._pool_of[key]].setdefault",
        "policies.test_caches:test_lru_starts_in_the_order_of_the_initial_keys",
    ),
    "first in, last out": Defect(
        "recency",
        "self._orders[self._pool_of[key]][key] = None",
        "self._orders[self._pool_of[key]] = {key: None, **self._orders[self._pool_of[key]]}",
        "policies.test_caches:test_fifo_goes_by_inserts_and_hears_no_requests",
    ),
    "a pass's own first": Defect(
        "recency",
        "if gate.step != self._step:",
        "if gate.step < self._step:",
        "policies.test_caches_scores:test_what_this_pass_has_not_touched_goes_first_each_generation_by_insert",
    ),
    "weights go against the error": Defect(
        "expected_needs",
        "error[asked] += 1",
        "error[asked] -= 1",
        "policies.test_predictors_expected_needs:test_weights_follow_the_error_of_a_forecast",
    ),
    "uses never forgotten": Defect(
        "frequency",
        'if self.counts == "resident":',
        'if self.counts == "never":',
        "policies.test_caches:test_only_resident_counts_are_forgotten_on_eviction",
    ),
    "the highest score first": Defect(
        "scored",
        "best = int(score.argmin())",
        "best = int(np.where(score < np.inf, score, -np.inf).argmax())",
        "policies.test_caches:test_each_term_alone",
    ),
    "negative weights": Defect(
        "weighted_score",
        "if 0 <= w <= MOST",
        "if w <= MOST",
        "policies.test_caches_scores:test_a_weight_that_is_no_number_from_0_on_is_refused",
    ),
    "eq. 3 without LHU": Defect(
        "weighted_terms",
        "+ w_lhu * high_uses[expert]",
        "+ w_lhu * uses[expert]",
        "policies.test_caches:test_each_term_alone",
    ),
    "eq. 3 keeps the farthest": Defect(
        "weighted_terms",
        "(1 - ahead / sites)",
        "(ahead / sites)",
        "policies.test_caches:test_the_site_that_comes_last_goes_first_and_the_current_one_last",
    ),
    "eq. 3 remembers other sequences": Defect(
        "weighted_terms",
        "        if begins:\n            self._begin_sequence()",
        "        pass",
        "policies.test_caches:test_what_was_learnt_is_forgotten_when_a_sequence_begins_but_not_when_one_ends",
    ),
    "eq. 3 divides by the token of before": Defect(
        "weighted_terms",
        "if token != self._token:",
        "if token < 0:",
        "policies.test_caches_scores:test_victims_of_eq_3_are_those_of_a_pass_over_all_keys",
    ),
    "EdgeMoE's distance the other way round": Defect(
        "scores",
        "(-1 if self._since else 1)",
        "(1 if self._since else -1)",
        "policies.test_caches_scores:test_frequency_over_distance_as_text_and_as_printed",
    ),
    "EdgeMoE's zero distance is one": Defect(
        "scores",
        "np.where(self._nearest, decoders, by_key)",
        "np.where(self._nearest, 1, by_key)",
        "policies.test_caches_scores:test_unused_experts_go_first_farthest_site_first_then_by_id",
    ),
    "late sites weigh as much": Defect(
        "scores",
        "score *= self._early[site]",
        "score *= 1.0",
        "policies.test_caches_scores:test_an_activation_ratio_is_a_share_of_the_sites_uses_and_early_sites_weigh_more",
    ),
    "visits counted as LFU does": Defect(
        "scores",
        "return -self._visits[within]",
        "return self._visits[within].copy()",
        "policies.test_caches_scores:test_the_code_of_moe_infinity_evicts_what_is_visited_most_and_forgets_it",
    ),
    "a decay for any number of steps": Defect(
        "frequency_classes",
        "self.decay ** (gate.step - self._step)",
        "self.decay",
        "policies.test_caches_scores:test_a_count_halves_with_each_step",
    ),
    "classes without halving": Defect(
        "frequency_classes",
        "self._count >>= min(halvings - self._halvings, 63)",
        "pass",
        "policies.test_caches_classes:test_counts_are_halved_every_half_life_and_rounded_down",
    ),
    "classes that eviction forgets": Defect(
        "frequency_classes",
        "self._has_place[key] = 0",
        "self._has_place[key] = self._count[key] = 0",
        "policies.test_caches_classes:test_counts_outlive_evictions_and_sequences",
    ),
    "large gates are heard": Defect(
        "large_gates",
        "> self.up_to_rows",
        "< 0",
        "policies.test_large_gates:test_a_gate_of_more_rows_changes_no_order_and_brings_nothing_in",
    ),
    "the last pattern counts": Defect(
        "tensor_overrides",
        "in self.overrides if pattern.search(tensor)",
        "in self.overrides[::-1] if pattern.search(tensor)",
        "policies.test_tensor_overrides:test_patterns_are_searched_in_order",
    ),
    "followers over sequences' ends": Defect(
        "expected_reuse",
        "self._asked = [[] for _ in self._asked]",
        "self._asked = [*self._asked]",
        "policies.test_caches_expected_reuse:test_a_new_sequence_follows_nothing",
    ),
    "a hand that stays": Defect(
        "queues",
        "self._hands[pool] = -1 if is_newest else around[newer % len(around)]",
        "self._hands[pool] = -1",
        "policies.test_caches_queues:test_sieves_hand_goes_on_from_where_it_was",
    ),
    "no ghosts": Defect(
        "queues",
        "self._returning.add(key)",
        "pass",
        "policies.test_caches_queues:test_a_ghost_comes_back_into_the_main_queue",
    ),
    "newcomers win": Defect(
        "queues",
        "self._count[new] <= self._count[old]",
        "False",
        "policies.test_caches_queues:test_what_leaves_the_window_stays_only_if_it_was_asked_for_more",
    ),
    "an age in seconds": Defect(
        "frequency_classes",
        "self._count[within] / np.maximum(self._ages(within), 1)",
        "self._count[within].astype(float)",
        "policies.test_caches_classes:test_lfru_divides_requests_by_age",
    ),
    "lots drawn once": Defect(
        "scores",
        "self._generator.random(out=self._draws)",
        "pass",
        "policies.test_caches_scores:test_lots_are_drawn_anew_after_every_eviction_and_evenly",
    ),
    "ARC's p moves by one": Defect(
        "adaptive",
        "self.target + max(1.0, len(twos) / len(ones))",
        "self.target + 1.0",
        "policies.test_caches_arc:test_the_longer_the_other_lists_ghosts_the_further_p_moves",
    ),
    "ARC takes T1's at p": Defect(
        "adaptive",
        "(is_ghost and held == lists.target)",
        "held == lists.target",
        "policies.test_caches_arc:test_two_slots_through_every_case_of_the_figure",
    ),
    "what was never in leaves a ghost": Defect(
        "adaptive",
        "                if was_resident:\n                    ghosts[key] = None",
        "                if key >= 0:\n                    ghosts[key] = None",
        "policies.test_caches_arc:test_what_was_requested_and_never_came_in_leaves_no_ghost",
    ),
    "Belady the other way round": Defect(
        "belady",
        "(key for _, key in reversed(self._orders[pool]) if",
        "(key for _, key in self._orders[pool] if",
        "policies.test_caches_belady:test_the_latest_next_request_goes_first_and_the_largest_key_of_those_never_asked_for",
    ),
    "a bypass that lets in what comes later": Defect(
        "belady",
        "return all((again[victim]",
        "return any((again[victim]",
        "policies.test_caches_belady:test_who_comes_again_before_all_that_would_have_to_go_enters",
    ),
    "a fixed list admits anybody": Defect(
        "popular",
        "return key in self._listed",
        "return key >= 0",
        "policies.test_caches_scores:test_the_most_used_experts_fill_the_cache_and_no_other_is_admitted",
    ),
    "shallow sites share, too": Defect(
        "quotas",
        "quotas.append(min(geometry.experts, slots))",
        "quotas.append(min(geometry.experts, slots) // 2)",
        "policies.test_quotas:test_shallow_sites_are_filled_before_deep_ones_share",
    ),
    "AdapMoE's loads without its prefetch": Defect(
        "quotas",
        "- b * (1 - math.comb(held, k) / math.comb(experts, k))",
        "- b * 0 * math.comb(experts, held)",
        "policies.test_quotas:test_expected_loads_are_adapmoes_for_eight_experts_and_two",
    ),
    "the last site takes what is left": Defect(
        "quotas",
        "better = candidate < total[own:]",
        "better = candidate > total[own:]",
        "policies.test_quotas:test_the_dynamic_programme_finds_the_best_of_all_divisions",
    ),
    # predictors
    "lookahead beyond what is asked": Defect(
        "lookahead",
        "_best_of(found, self.experts)",
        "_best_of(found, self.experts + 1)",
        "policies.test_predictors_lookahead:test_speculative_loading_may_name_one_or_two_of_what_is_forecast",
    ),
    "the percentile itself is above it": Defect(
        "lookahead",
        "named = ranked > percentile_of(",
        "named = ranked >= percentile_of(",
        "policies.test_predictors_lookahead:test_a_tie_at_the_percentile_is_not_above_it_and_ties_above_go_by_id",
    ),
    "the offline budget rounded up": Defect(
        "lookahead",
        "max(block_ns // expert_ns, top_k)",
        "max(-(-block_ns // expert_ns), top_k)",
        "policies.test_predictors_lookahead:test_the_offline_budget_is_what_fits_beside_a_block",
    ),
    "the farthest request is the match": Defect(
        "matching",
        "* 1e12).argmax()",
        "* 1e12).argmin()",
        "policies.test_predictors_matching:test_the_request_nearest_by_the_cosine_of_its_rows_is_the_match",
    ),
    "a path of one site only": Defect(
        "paths",
        "if earlier is not None:\n            key =",
        "if earlier == 0:\n            key =",
        "policies.test_predictors_paths:test_the_dictionary_of_two_sites_backs_off_to_one",
    ),
    "no back-off": Defect(
        "paths",
        "            key = key[1:]\n",
        "            break\n",
        "policies.test_predictors_paths:test_the_dictionary_of_two_sites_backs_off_to_one",
    ),
    "conditionals of the next site on itself": Defect(
        "paths",
        "self._of[site][experts], 0.0)",
        "self._of[site].T[experts], 0.0)",
        "policies.test_predictors_paths:test_the_sum_of_conditionals_ranks_the_next_site",
    ),
    "every token is unknown": Defect(
        "token_routes",
        "self._place.get(token, len(self._place))",
        "len(self._place)",
        "policies.test_predictors_references:test_a_hash_layer_is_foretold_by_its_token",
    ),
    "networks without their last layer's bias": Defect(
        "learned",
        "@ weight + bias",
        "@ weight + bias * 0",
        "policies.test_predictors_learned:test_the_networks_equal_plain_python",
    ),
    "history of another step": Defect(
        "learned",
        "earlier = self._seen if gate.step == self._step else []",
        "earlier = self._seen",
        "policies.test_predictors_learned:test_the_selections_of_an_earlier_step_are_no_history",
    ),
    "the future of another step": Defect(
        "references",
        "future.step[tick] == future.step[gate.tick]",
        "future.step[tick] >= 0",
        "policies.test_predictors_references:test_the_future_is_told_as_far_as_the_step_goes",
    ),
    "stated is right as often as a coin": Defect(
        "references",
        "if draw < recall\n",
        "if draw < 0.5\n",
        "policies.test_predictors_references:test_a_perfect_statement_is_the_future_and_none_is_nothing",
    ),
    "importance never fades": Defect(
        "importance",
        "self._importance[gate.site] * self.decay",
        "self._importance[gate.site] * 1.0",
        "policies.test_predictors_importance:test_importance_is_gate_weight_that_halves_with_each_gate_of_the_site",
    ),
    # precisions, and who serves
    "a score at T1 is low": Defect(
        "by_score",
        "(scores > self.low_above)",
        "(scores >= self.low_above)",
        "policies.test_precisions:test_a_threshold_belongs_to_the_better_side",
    ),
    "a light expert at the threshold goes": Defect(
        "precisions",
        "[SKIP if score > self.skip_above else 0",
        "[SKIP if score < self.skip_above else 0",
        "policies.test_precisions:test_a_light_expert_is_left_out_even_where_it_is_there",
    ),
    "the most used at low": Defect(
        "precisions",
        'kind="stable")[:count]',
        'kind="stable")[::-1][:count]',
        "policies.test_precisions:test_the_least_used_experts_have_the_lower_width",
    ),
    "the most popular at low": Defect(
        "precisions",
        "[0] * (len(needs) - low) + [1] * low",
        "[1] * low + [0] * (len(needs) - low)",
        "policies.test_precisions:test_the_least_popular_quarter_of_a_prompts_experts_is_low",
    ),
    "all that was forecast serves": Defect(
        "reroutes",
        "resident.foreseen[: len(needs)]",
        "resident.foreseen[:]",
        "core.test_rerouting:test_what_was_forecast_serves",
    ),
    "one expert serves a row twice": Defect(
        "reroutes",
        "free[asking, best] = False",
        "free[asking, best] = True",
        "policies.test_masked_gate:test_of_one_row_what_is_absent_goes_to_the_best_there",
    ),
    # placements
    "Fiddler's tie goes to the CPU": Defect(
        "placements",
        "self.cpu_per_token * n < self.load",
        "self.cpu_per_token * n <= self.load",
        "policies.test_placements:test_the_sum_goes_to_the_cpu_below_ten_tokens_and_at_ten_to_the_gpu",
    ),
    "of equal costs the fewest loads": Defect(
        "placements",
        "count * self.load) <= best:",
        "count * self.load) < best:",
        "policies.test_placements:test_the_maximum_balances_both_sides",
    ),
    "prompts on the CPU": Defect(
        "placements",
        "(gate.row_phase != DECODE).any()",
        "(gate.row_phase != DECODE).all()",
        "policies.test_placements:test_prompts_are_the_gpus_where_only_decoding_may_use_the_cpu",
    ),
    # payloads
    "a layer is what is needed of it": Defect(
        "payloads",
        "divmod(len(sizes), len(needs))",
        "divmod(len(needs), len(needs))",
        "policies.test_payloads:test_the_needs_of_a_gate_bring_all_experts_of_the_layer_between_them",
    ),
    "idle channels move": Defect(
        "payloads",
        "self._bytes(key, self.active_share)\n",
        "self._bytes(key, self.sparsity)\n",
        "policies.test_payloads:test_a_forecast_moves_the_nominal_share",
    ),
    "channels of this site's own input": Defect(
        "payloads",
        "if choice.site == gate.site + 1 and",
        "if choice.site >= gate.site and",
        "policies.test_payloads:test_of_a_row_that_is_not_known_or_a_later_site_it_moves_the_nominal_share",
    ),
    # what policies are made to do
    "the least likely first": Defect(
        "sim.policies.row_forecast",
        "(-np.concatenate([likely",
        "(+np.concatenate([likely",
        "core.test_prefetch_order:test_demands_go_first_and_then_the_likeliest_of_all_sites",
    ),
    "old masks stay beside new ones": Defect(
        "sim.core.protection",
        "        self._masks.clear()\n",
        "        self._masks.copy()\n",
        "core.test_prefetch_order:test_a_new_queue_replaces_what_waits_and_what_was_masked",
    ),
    "slots of stored bytes": Defect(
        "sim.core.slots",
        "list(geometry.slot_bytes) if geometry.held_bytes else self.key_bytes",
        "self.key_bytes",
        "policies.test_held_experts:test_a_slot_is_taken_by_what_is_held_and_a_load_moves_what_is_stored",
    ),
    # what policies are given
    "a selector reads a geometry that is not there": Defect(
        "requires",
        "if self._geometry is None:",
        "if self._geometry is self:",
        "policies.test_requires:test_a_selector_is_prepared_before_there_is_a_geometry",
    ),
    "no pool is short": Defect(
        "sim.core.slots",
        "capacity < at_once * size",
        "capacity < 0 * size",
        "core.test_short_pools:test_a_quota_of_zero_needs_staging_and_says_so",
    ),
}


def cases_of(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each case of a parametrized test."""
    choices: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        names = (
            [name.strip() for name in mark.args[0].split(",")]
            if isinstance(mark.args[0], str)
            else mark.args[0]
        )
        values = (value if len(names) > 1 else (value,) for value in mark.args[1])
        choices.append([dict(zip(names, value, strict=True)) for value in values])
    for combination in product(*choices):
        yield {name: value for part in combination for name, value in part.items()}


def table_of(defect: Defect) -> Callable[..., Any]:
    file, _, name = defect.table.partition(":")
    test: Callable[..., Any] = getattr(import_module(f"unit.sim.{file}"), name)
    return test


def passes(table: Callable[..., Any]) -> bool:
    try:
        for case in cases_of(table):
            table(**case)
    except (
        AssertionError,
        ArithmeticError,
        LookupError,
        RuntimeError,
        ValueError,
        pytest.fail.Exception,
    ):
        return False
    return True


@pytest.mark.pure
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_in_a_policy_is_noticed_by_the_table_of_its_mechanism(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect = DEFECTS[name]
    table = table_of(defect)
    assert passes(table), "without the defect it holds"
    assert plant(defect, monkeypatch) >= 1
    assert not passes(table), f"{name}: {defect.table} does not notice"


def test_every_module_of_policies_has_a_defect_planted_in_it() -> None:
    folder = module_of("base").__file__
    assert folder is not None
    modules = {path.stem for path in Path(folder).parent.glob("*.py")}
    # These have only interfaces, names, parts of the others, or data.
    plain = {"__init__", "base", "predictors", "fitted", "row_forecast", "pools", "profile"}
    assert modules - plain == {
        defect.module for defect in DEFECTS.values() if not defect.module.startswith("sim.")
    }
