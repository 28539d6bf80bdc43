import public_jobs

BATCH_SIZE = 128

x, y = public_jobs.digits()
model = public_jobs.digits_model()
model.fit(x, y, batch_size=BATCH_SIZE, epochs=15)
