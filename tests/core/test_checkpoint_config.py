"""Both ways of writing the configuration, and the hash constants that follow from it."""

from slotstream_core import testing
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.ngram_tables import derive_ngram_tables


def test_the_two_names_of_sparse_attention_mean_the_same() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention"]
    published = testing.config_document({"layer_types": [*kinds, "full_attention"]})
    upstream = testing.config_document({"layer_types": [*kinds, "indexed_attention"]})
    assert Qwen4ExpConfig.from_document(published) == Qwen4ExpConfig.from_document(upstream)


def test_text_settings_may_stand_at_the_top_level() -> None:
    nested = testing.config_document()
    flat = {**{k: v for k, v in nested.items() if k != "text_config"}, **nested["text_config"]}
    flat["model_type"] = "qwen4_exp_text"
    assert Qwen4ExpConfig.from_document(flat) == Qwen4ExpConfig.from_document(nested)


def test_layer_kinds_follow_the_interval_when_they_are_not_listed() -> None:
    document = testing.config_document({"num_hidden_layers": 6, "full_attention_interval": 3})
    kinds = Qwen4ExpConfig.from_document(document).layer_types
    assert [kind == "full_attention" for kind in kinds] == [False, False, True, False, False, True]


def test_several_ends_of_document_are_kept_in_order() -> None:
    config = Qwen4ExpConfig.from_document(testing.config_document({"eos_token_id": [256, 258]}))
    assert config.eos_token_ids == (256, 258)


def test_hash_constants_equal_those_that_the_family_stores() -> None:
    # Values of layer_multipliers, ngram_heads_vocab_sizes and ngram_heads_offsets that transformers 5.24 saved for
    # vocabulary 512, order 3, two heads an order, base 500, seed 1234.
    tables = derive_ngram_tables(Qwen4ExpConfig.from_document(testing.config_document()), 0)
    assert tables.multipliers == (4295158889763781, 17440218147737327, 1270917961434445)
    assert tables.head_sizes == (503, 509, 521, 523)
    assert tables.head_offsets == (0, 503, 1012, 1533)
    assert tables.total_rows == 2064


def test_a_second_embedding_continues_the_primes_of_the_first() -> None:
    config = Qwen4ExpConfig.from_document(testing.config_document({"ple_layer_ids": [1, 3]}))
    first, second = derive_ngram_tables(config, 0), derive_ngram_tables(config, 1)
    assert second.head_sizes[0] > first.head_sizes[-1]
    assert second.multipliers != first.multipliers
