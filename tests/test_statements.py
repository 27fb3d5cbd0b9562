"""Every statement of the privacy pages names the tests that show it, or says why it is an assumption.

A statement is a paragraph that begins with words in bold or in italics, or an item of a list. A new one fails here
until it has a line in the table below.
"""
# ruff: noqa: E501 - names of tests are long

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
STATEMENT = re.compile(r"^(?:- |\*\*|\*(?=[A-Z]))")

NOT_PROMISED = "assumption: it says what is not promised"
BY_OTHERS = "assumption: it is about what parties do outside tdcd"
MASKED, BLOCKS = "runtime/test_masked_sums.py", "runtime/test_masked_blocks.py"
CERTIFICATES, REVOKED = "runtime/test_certificates.py", "runtime/test_revocation.py"
COMPANIES = "runtime/test_companies.py"
NOISE, BLOCK_NOISE = "core/test_gaussian_noise.py", "core/test_block_noise.py"
AUDIT, SAID, SECRECY = "audit/test_audit.py", "runtime/test_what_is_said.py", "runtime/test_label_secrecy.py"

STATEMENTS = {
    "masks": {
        "Restarts": f"{BLOCKS}::test_a_client_answers_a_round_once "
        "runtime/test_deviating_hubs.py::test_what_follows_from_other_numbers_has_other_masks",
        "Different things to": "runtime/test_deviating_hubs.py::"
        "test_masks_do_not_cancel_where_hubs_were_sent_different_things",
        "Samples that some": "runtime/test_missing_rows_machines.py::test_same_as_the_simulation",
        "The simulation": f"{MASKED}::test_the_masked_run_is_the_plain_one_bit_for_bit_and_the_simulation",
        "Resolution": "core/test_fixed_point.py::test_sums_are_right_to_the_resolution_and_alike_in_both_libraries "
        "core/test_fixed_point.py::test_numbers_beyond_the_range_are_never_wrapped "
        f"{MASKED}::test_numbers_beyond_the_range_stop_everybody",
        "Costs": f"{SAID}::test_the_ledger_counts_what_was_sent",
        "Another silo's hub": f"{MASKED}::test_a_hub_cannot_tell_the_others_phi_apart",
        "Your own hub": f"{BLOCKS}::test_what_a_hub_gets_says_nothing_without_the_masks "
        f"{AUDIT}::test_summed_blocks_do_not_hide_rows_from_the_silos_own_hub",
        "Forward secrecy": "runtime/test_mask_keys.py::test_the_key_of_a_run_folder_stays_and_is_for_its_owner_alone "
        "faults/test_masked_laboratory.py::test_crashes_and_bad_links",
        "A client that is gone": f"{BLOCKS}::test_a_client_that_is_gone_is_left_out_of_a_sum_with_fresh_masks "
        f"{BLOCKS}::test_the_last_two_are_not_let_go",
    },
    "certificates": {
        "The federation's name": f"{CERTIFICATES}::test_a_certificate_names_its_federation_and_one_of_another_is_refused "
        "runtime/test_mask_keys.py::test_cards_of_another_federation_of_the_same_authority_are_refused",
        "On every link": f"{COMPANIES}::test_certificates_of_another_federation_of_the_same_authority_have_no_link",
        "Messages": "runtime/test_seals.py::test_a_second_certificate_in_a_partys_name_neither_reads_nor_writes_in_it "
        "runtime/test_seals.py::test_whoever_has_certificates_in_both_names_passes_on_ciphertexts_and_changes_none "
        "runtime/test_seals.py::test_a_proof_with_a_key_of_another_is_refused "
        "runtime/test_seals.py::test_pieces_open_once_in_order_at_the_other_end_alone",
        "The run": "runtime/test_processes.py::test_parties_that_do_not_fit_end_with_status_2_and_say_why",
        "What it can sign": f"{COMPANIES}::"
        "test_clients_of_a_company_have_links_and_other_hubs_know_nothing_of_its_authority",
        "What it cannot": f"{COMPANIES}::test_to_other_hubs_a_companys_authority_is_nobody "
        f"{COMPANIES}::test_hubs_do_not_take_a_server_with_its_certificate_for_another_hub",
        "Its clients, to its hub": f"{COMPANIES}::"
        "test_its_own_hub_takes_every_certificate_from_one_authority_only "
        f"{COMPANIES}::test_only_the_hubs_and_authoritys_requests_cross_a_border",
        "Its clients, to others": f"{COMPANIES}::test_what_clients_sign_shows_their_companys_authority_to_all",
        "Its list": f"{COMPANIES}::test_a_company_revokes_its_own_clients_and_no_others",
        "How long it lasts": f"{COMPANIES}::test_only_the_hubs_and_authoritys_requests_cross_a_border "
        f"{COMPANIES}::test_an_authority_whose_key_was_stolen_is_replaced",
        "Renewal": "runtime/test_expiry.py::test_a_certificate_that_expires_is_logged_every_day_and_by_both_ends "
        f"{CERTIFICATES}::test_one_party_and_renewal "
        "runtime/test_renewal.py::test_files_are_used_when_they_are_good_and_all_there "
        "runtime/test_renewal.py::test_a_new_authority_is_said_to_take_a_restart "
        "runtime/test_renewed_processes.py::test_a_training_goes_on_with_new_certificates_and_the_same_bits",
        "A new party": f"{CERTIFICATES}::test_issuing_again_adds_what_is_missing_and_replaces_what_is_bad",
        "A stolen key": f"{CERTIFICATES}::test_signed_by_another_authority",
        "Your own authority": f"{CERTIFICATES}::test_names_and_uses_follow_the_role",
        "it acts on no message": f"{REVOKED}::test_unread_messages_of_one_peer_can_be_thrown_away",
        "it closes the party's link": f"{REVOKED}::test_a_revoked_client_is_cut_off_and_its_replacement_let_in",
        "its log has the event": f"{REVOKED}::test_a_newer_list_is_in_force_at_once",
        "Coming back": "runtime/test_requests.py::test_revoke_then_a_new_certificate "
        "runtime/test_revoked_processes.py::test_with_protected_blocks_the_replacement_has_a_new_key_and_no_other_ends",
    },
    "privacy": {
        "Labels at one silo": f"{AUDIT}::test_slopes_are_binary_labels",
        "Rows of many": "runtime/test_rows_of_many_samples.py::test_the_run_of_the_joined_table_in_fewer_bytes "
        "runtime/test_rows_of_many_samples.py::test_numbers_of_rows_are_checked",
        "In a standing": "standing/test_standing_parties.py::"
        "test_one_proposal_and_approvals_are_a_run_as_typed_by_hand_whoever_is_killed",
        "Certificates": "laws/test_certificate.py::test_labels_at_one_silo_wait_until_minibatches_had_every_sample",
        "Encrypted slopes": "runtime/test_encrypted_parties.py::test_the_label_hub_sees_no_gradient_and_no_hub_a_clients",
        "Masked sums": f"{AUDIT}::test_masks_hide_who_contributed_what "
        f"{AUDIT}::test_masks_do_not_hide_a_silo_from_an_attacker_who_knows_enough_rows",
        "Summed blocks": f"{AUDIT}::test_summed_blocks_do_not_hide_rows_from_the_silos_own_hub",
        "Few bits": NOT_PROMISED,
        "What the number says.** Take": f"{NOISE}::test_no_number_of_messages_spends_more_than_is_stated "
        f"{AUDIT}::test_two_rows_at_the_ends_of_what_is_sent_are_distinguished_as_often_as_the_noise_allows",
        "Attacks stay under it": f"{AUDIT}::test_noise_on_phi_keeps_every_attack_on_a_row_under_the_bound_of_its_epsilon",
        "What was spent": "laws/test_private_noise.py::test_a_hub_never_reports_less_than_it_has_sent",
        "What it does not cover.**\n": NOT_PROMISED,
        "Blocks.*": NOT_PROMISED,
        "Preparation": NOT_PROMISED,
        "Slopes": NOT_PROMISED,
        "What a silo sends besides phi": NOT_PROMISED,
        "Several runs add up": "runtime/test_account.py::"
        "test_what_is_said_is_never_below_what_was_sent_over_runs_and_crashes",
        "Random numbers": "assumption: threefry is a good generator, and 2^64 trials are out of reach",
        "A row with a phi": f"{NOISE}::test_a_row_that_is_no_number_is_sent_as_zeros_with_noise "
        f"{NOISE}::test_noise_that_exact_sums_have_no_room_for_is_refused",
        "Predictions": "standing/test_desk.py",
        "What it costs.** Logistic": "assumption: figures of `python -m benchmarks.phi_privacy`",
        "What the number says.** Put": f"{BLOCK_NOISE}::"
        "test_the_sum_is_the_mean_of_clipped_changes_and_noise_of_the_stated_variance "
        f"{BLOCK_NOISE}::test_the_same_change_gets_the_same_bytes_and_another_one_other_noise",
        "What it does not cover.** Phi": NOT_PROMISED,
        "What it costs.** The mean": "assumption: figures of single runs",
        "Who got predictions": "runtime/test_account.py::"
        "test_predictions_are_counted_by_who_got_them_and_have_no_epsilon "
        "runtime/test_predict_hubs.py::test_every_hub_counts_what_it_sends_to_whom_before_it_does",
        "The hub with the labels gets": "runtime/test_label_silo.py::"
        "test_the_hubs_send_in_a_star_and_the_ledger_counts_it",
        "Clients without labels": f"{SECRECY}::test_before_the_first_slope_nothing_depends_on_the_labels",
        "Your own hub gets labels": f"{SECRECY}::test_no_message_to_a_party_without_labels_has_a_label_or_a_digest_of_them",
        "Labels are not compared": NOT_PROMISED,
        "An attacker on the network": "runtime/test_zenoh_transport.py::"
        "test_whoever_reaches_a_hubs_port_is_shown_its_certificate_and_nothing_older_than_tls_13",
        "The issuer": "runtime/test_requests.py::test_the_key_is_closed_to_others_and_is_not_in_the_request "
        f"{COMPANIES}::test_its_own_hub_takes_every_certificate_from_one_authority_only",
        "Your own hub** gets": f"{SAID}::test_no_row_of_features_leaves_its_client "
        "tables/test_preparation.py::test_a_summary_has_no_row_in_it",
        "A linear block does not hide": f"{AUDIT}::test_a_linear_silo_without_protection_is_read",
        "A client with few training rows": NOT_PROMISED,
        "A sketch": "tables/test_sketch.py::test_every_count_is_of_several_rows_and_every_number_amid_them_or_shared "
        "tables/test_sketch.py::test_a_client_with_a_handful_of_rows_says_nothing",
        "Deep blocks": NOT_PROMISED,
        "A hub that does *not*": NOT_PROMISED,
        "Another silo's hub": f"{SAID}::test_kinds_of_message_and_who_may_say_them "
        "runtime/test_hostile.py::test_a_hub_does_not_send_its_block_unless_all_agreed_to_share_the_model",
        "It knows which sample": NOT_PROMISED,
        "With a linear block it sees": NOT_PROMISED,
        "If it knows the features": f"{AUDIT}::test_a_linear_silo_without_protection_is_read",
        "It also knows the labels": NOT_PROMISED,
        "`share_model = true` adds": NOT_PROMISED,
        "A client** gets": f"{SAID}::test_a_client_gets_its_own_rows_of_the_others_sum",
        "A party that lies": "runtime/test_hostile.py::test_a_wrong_array_is_refused "
        "runtime/test_tables.py::test_labels_that_do_not_fit_stop_everybody",
        "how many ids each other": "alignment/test_alignment.py::"
        "test_no_unblinded_point_is_sent_and_no_point_in_two_runs "
        "alignment/test_alignment.py::test_two_silos_points_for_a_third_say_nothing_of_what_the_two_have_in_common",
        "with `tdcd align --counts`": "runtime/test_align.py::test_counts_show_hubs_how_many_and_no_party_which",
        "Who has the file and": NOT_PROMISED,
        "Who has the file alone": "serving/test_publication.py::test_it_has_phi_of_the_common_ids_and_no_id",
        "The expiry is a promise": "serving/test_service.py::test_expired_phi_is_not_used",
        "With labels at one silo, the file": BY_OTHERS,
        "Refused where training hides": "serving/test_service.py::test_what_must_not_be_published_is_refused",
        "Protection against parties": NOT_PROMISED,
        "That other attacks": NOT_PROMISED,
        "Differential privacy of the whole": NOT_PROMISED,
        "Keys in hardware": NOT_PROMISED,
    },
    "label_privacy": {
        "a client that was killed": "runtime/test_label_privacy.py::"
        "test_the_draw_is_a_secret_of_the_client_and_the_same_after_a_restart",
        "another epsilon": "data/test_randomized_labels.py::test_anything_else_is_drawn_independently",
        "so does an id": "data/test_randomized_labels.py::test_anything_else_is_drawn_independently",
        "a lost key": "runtime/test_label_privacy.py::test_a_key_that_is_damaged_is_not_replaced",
        "An accuracy from m": "core/test_randomized.py::test_the_chances_are_those_of_randomised_response",
        "Figures of *training*": NOT_PROMISED,
        "`held-out.csv`": "runtime/test_label_privacy.py::test_a_trial_has_the_labels_of_the_simulation",
    },
}
"""By page, how a statement begins: tests, or why it is an assumption."""


def statements(page):
    """How the statements of a page begin, without signs of its form."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if STATEMENT.match(line)]
    return [f"{re.sub(r'^(- )?[*]{0,2}', '', line)}\n" for line in lines]


@pytest.mark.parametrize("page", STATEMENTS)
def test_every_statement_has_tests_or_is_an_assumption(page):
    found, known = statements(page), STATEMENTS[page]
    assert len(found) > 5
    # The longest beginning is meant.
    shown = {line: max((key for key in known if line.startswith(key)), key=len, default=None) for line in found}
    assert [line[:60] for line, key in shown.items() if key is None] == []
    assert {*known} == {*shown.values()}


@pytest.mark.parametrize("page", STATEMENTS)
def test_tests_that_show_a_statement_are_there(page):
    for statement, shown in STATEMENTS[page].items():
        if shown.startswith("assumption: "):
            continue
        for place in shown.split():
            path, _, name = place.partition("::")
            text = (TESTS / path).read_text(encoding="utf-8")
            assert (f"def {name}(" if name else "def test_") in text, (statement, place)
