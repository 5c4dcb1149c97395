"""LitServe. Arguments: port, largest batch, seconds that a batch waits."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import litserve
import serving_model


class Api(litserve.LitAPI):
    """The model behind the protocol's path."""

    def setup(self, device: str) -> None:
        self.model = serving_model.make_model()

    # LitServe reads annotations of these methods as schemas of the body: there are none.
    def decode_request(self, request):
        return request["inputs"][0]["data"]

    def predict(self, rows):
        if isinstance(rows[0], list):
            return serving_model.run_rows(self.model, rows)
        return serving_model.run_rows(self.model, [rows])[0]

    def batch(self, inputs):
        return list(inputs)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return serving_model.reply([output])


if __name__ == "__main__":
    api = Api(max_batch_size=int(sys.argv[2]), batch_timeout=float(sys.argv[3]), api_path=serving_model.INFER_PATH)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning", num_api_servers=1
    )
